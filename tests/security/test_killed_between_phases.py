"""A node is killed in each phase of a message: what left was charged before, what was not charged never left."""

import json

from guarded_node import Owner
from support import ROOT, ran

from fedshift.site.deploy.exporting import NodeFolder

KILLED = """
import itertools, json, os, signal, sys
from pathlib import Path

import guarded_node
from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app import client_app
from fedshift_app.node import ledger, out_log
from fedshift_app.node.owner import Owner

folder, policy = NodeFolder(Path(sys.argv[1]), "scan", 0, ()), sys.argv[2]
NOISE = "privacy.name=local-dp privacy.clipping_norm=0.5 privacy.epsilon=1"
node = guarded_node.run(folder, NOISE, policy=policy)
contents = {"train": node.content(), "evaluate": node.content(domains=["scan"])}


def dies(of, name, number, after):
    real = getattr(of, name)

    def killed(*given, **more):
        made = real(*given, **more) if after else None
        os.kill(os.getpid(), number)
        signal.pause()

    setattr(of, name, killed)


PHASES = {
    "before work": (client_app.owner, "admit", True),
    "after work": (Owner, "leaves", False),
    "before the ledger is replaced": (Path, "replace", False),
    "after charge": (Owner, "leaves", True),
    "after log": (out_log, "record", True),
    "never": None,
}
for kind, (phase, place), number in itertools.product(contents, PHASES.items(), (signal.SIGKILL, signal.SIGTERM)):
    sent, told = os.pipe()
    if (child := os.fork()) == 0:
        if place is not None:
            dies(*place[:2], number, place[2])
        reply = node.send(kind, contents[kind])
        os.write(told, b"error" if reply.has_error() else b"sent")
        os._exit(0)
    os.close(told)
    left = os.read(sent, 10).decode()
    _, status = os.waitpid(child, 0)
    book = ledger.of_images(folder.path).read()
    charged = len(book.trained) if kind == "train" else sum(len(run.questions) for run in book.scored.values())
    print(json.dumps({"phase": phase, "left": left, "killed": os.WIFSIGNALED(status), "charged": charged}), flush=True)
    ledger.of_images(folder.path).change(lambda book, now: book.model_copy(update={"trained": (), "scored": {}}))
"""


def test_it_is_charged_or_not_sent(folder: NodeFolder, policy: Owner) -> None:
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
    ended = ran("-c", KILLED, folder.path, policy(rounds_per_day=5), env=environment, check=True)
    found = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    assert len(found) == 24, ended.stdout
    for each in found:
        alive = each["phase"] == "never"
        assert (each["left"], each["killed"]) == ("sent" if alive else "", not alive), each
        assert each["charged"] == (alive or each["phase"] in ("after charge", "after log")), each
