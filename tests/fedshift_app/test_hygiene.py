"""Nothing that another party wrote is executed, followed out of its folder, or written to a log."""

import ast
import functools
import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Message, RecordDict
from refusals import worded
from support import ROOT, InlineRun, load_benchmark
from traffic import changing
from words import config as config_of

from fedshift.run.engine import inline
from fedshift_app import client_app
from fedshift_app.config.resolving import resolve
from fedshift_app.flower.internals import make_context
from fedshift_app.node import setup
from fedshift_clients.base import DomainClient
from fedshift_core.errors import ConfigError, RequestError
from fedshift_core.wire.records import encode

PARTS = ("fedshift", "fedshift_app", "strategies", "clients", "datasets", "fedshift_core")
SHORT = "train.epochs=1 allocation.share=0.1"

#: cifar.py alone reads pickled files: those of the data set's authors, by an unpickler that refuses all but arrays.
#: carried.py holds a person's own classes for the processes of that person, under the rule of a user's own .py files.
MAY_PICKLE = {
    "datasets/fedshift_datasets/sets/cifar.py",
    "fedshift_core/carried.py",
}
#: A program that a person names to `fedshift predict` is run by it: that is what it is for (docs/deploy/security.md).
#: mat.py reads in a process of its own, which a damaged file may end.
MAY_RUN = {
    "fedshift/export/programs.py": {"torch.jit.load", "torch.export.load"},
    "datasets/fedshift_datasets/io/mat.py": {"loadmat"},
}
PICKLING = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
#: Calls that run code, start a program or end the process, or can be made to by what they read, and what makes each
#: of them safe.
DANGEROUS = {"torch.load": "weights_only=True", "np.load": "allow_pickle=False", "Image.open": "formats="}
#: Those that nothing makes safe.
NEVER = (
    "eval exec compile __import__ torch.jit.load torch.export.load os.system joblib.load marshal.loads shelve.open "
    "yaml.unsafe_load yaml.full_load yaml.load loadmat scipy.io.loadmat"
)


@functools.cache
def sources() -> dict[Path, str]:
    return {path: path.read_text() for part in PARTS for path in (ROOT / part).rglob("*.py")}


@functools.cache
def syntax() -> dict[Path, list[ast.Import | ast.ImportFrom | ast.Call]]:
    """Return what the tests look at in each source: its imports and calls."""
    kinds = (ast.Import, ast.ImportFrom, ast.Call)
    return {
        path: [place for place in ast.walk(ast.parse(text)) if isinstance(place, kinds)]
        for path, text in sources().items()
    }


def dotted(place: ast.expr) -> str:
    """Return ``a.b.c`` as it is written; a call or the like within it is ``?``."""
    if isinstance(place, ast.Attribute):
        return f"{dotted(place.value)}.{place.attr}"
    return place.id if isinstance(place, ast.Name) else "?"


def test_no_path_that_reads_what_another_party_wrote_can_run_code() -> None:
    collected = []
    for path, places in syntax().items():
        where = str(path.relative_to(ROOT))
        for place in places:
            if isinstance(place, ast.Call):
                name = dotted(place.func)
                text = ast.unparse(place) if name in DANGEROUS or "subprocess" in name else ""
                shell = "subprocess" in name and "shell=True" in text
                wrong = name in NEVER.split() or DANGEROUS.get(name, "") not in text or shell
                wrong = wrong and name not in MAY_RUN.get(where, ())
            else:
                modules = {name.name for name in place.names} | {getattr(place, "module", "")}
                wrong = bool(modules & PICKLING) and where not in MAY_PICKLE
            if wrong:
                collected.append(f"{where}:{place.lineno}: {ast.unparse(place)}")
    assert len(sources()) > 50
    assert collected == []


def test_only_a_users_own_file_is_run_by_its_path() -> None:
    """One place loads Python by a path, and asks the process's environment first."""
    of = {str(path.relative_to(ROOT)): text for path, text in sources().items()}
    loads, calls = "fedshift_core/extensions.py", "fedshift_app/config/plugins.py"
    assert [path for path, text in of.items() if "exec_module(" in text or "run_path" in text] == [loads]
    assert {path for path, text in of.items() if "load_file(" in text} - {loads} == {calls}


#: What each package may import of ours, besides itself.
BELOW = {
    "fedshift_core": "",
    "datasets": "fedshift_core",
    "strategies": "datasets fedshift_core",
    "clients": "datasets fedshift_core",
    "fedshift_app": "strategies clients datasets fedshift_core",
    "fedshift": "fedshift_app strategies clients datasets fedshift_core",
}


def imports() -> Iterator[tuple[Path, str]]:
    """Yield the files of our packages, each with the dotted names that it imports."""
    for path, places in syntax().items():
        for place in places:
            if isinstance(place, ast.Import):
                yield from ((path.relative_to(ROOT), name.name) for name in place.names)
            elif isinstance(place, ast.ImportFrom):
                yield from ((path.relative_to(ROOT), f"{place.module}.{name.name}") for name in place.names)


def test_imports_point_one_way() -> None:
    for path, name in imports():
        part, top = path.parts[0], name.split(".")[0]
        assert top not in PARTS or top in (part, *BELOW[part].split()), path
        assert (part, top) != ("strategies", "torch"), path


#: The rooms of the command, and what each may import of the others: 20 arrows, none upwards, no circle.
ROOMS = {
    "run": "",
    "data": "run",
    "export": "run data",
    "lab": "run data export",
    "site": "run data export",
    "api": "run data export lab",
    "cli": "run data export lab site api",
}


def test_rooms_of_the_command_import_downwards() -> None:
    for path, name in imports():
        part, *rest = path.parts
        if part != "fedshift" or len(rest) < 2 or rest[0] == "testing":  # the doors: the package itself, testing
            continue
        top, _, room = name.partition(".")
        assert top != "fedshift" or room.split(".")[0] in (rest[0], *ROOMS[rest[0]].split()), (path, name)


def test_a_node_computes_without_flower() -> None:
    """Of Flower the node side knows the NumPyClient alone: its loop can be measured where there is none.

    But for what answers the messages of a user's own app, plain.py.
    """
    travelling = ("flwr.", "fedshift_core.wire.records.", "fedshift_core.wire.messages.")
    found = {
        f"{path}: {name.rpartition('.')[0]}"
        for path, name in imports()
        if path.parts[0] in ("clients", "datasets", "fedshift_core") and name.startswith(travelling)
    }
    wire = "fedshift_core/wire"
    assert {line for line in found if not line.startswith("clients/fedshift_clients/plain.py: ")} == {
        "clients/fedshift_clients/training/node.py: flwr.client",
        f"{wire}/messages.py: flwr.app",
        f"{wire}/packing.py: fedshift_core.wire.records",
        f"{wire}/packing.py: flwr.app",
        f"{wire}/records.py: flwr.app",
    }


NUMBERS = re.compile(r"(?:-?\d+(?:\.\d*)?(?:e-?\d+)?[\s,;\]\[]+){24,}")


def no_number(message: Message, reply: Message) -> Message:
    arrays = reply.content.array_records["arrays"]
    first = next(iter(arrays))
    arrays[first] = Array(np.full_like(arrays[first].numpy(), np.nan))
    return reply


def test_logs_hold_no_images_and_no_weights(
    run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of a node that breaks off with a traceback while it holds images, and one whose weights are refused."""
    everything = logging.StreamHandler(text := io.StringIO())
    loggers = [logging.getLogger(name) for name in ("", "flwr", "fedshift")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(everything)
        logger.setLevel(logging.DEBUG)

    def broken(self: Any, test: Any) -> Any:
        raise RuntimeError(f"cannot score {test}")

    monkeypatch.setattr(DomainClient, "score_test", broken)
    try:
        run = run_inline(f"rounds=1 method=i2pfl {SHORT}", grid=changing(no_number, "train", [1]))
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.removeHandler(everything)
            logger.setLevel(level)
    assert len(run.rounds[0]["left_out"]) > 1
    written = ("config.yaml", "metrics.jsonl", "results.json", "status.json", "log.jsonl")
    *files, logged = [(run.folder / name).read_text() for name in written]
    lines = "\n".join([text.getvalue(), *capfd.readouterr(), logged]).splitlines()
    assert "left_out" in logged and any("cannot score" in line for line in lines)
    for line in lines:
        assert len(line) < 2500 and not NUMBERS.search(line), line[:2500]
    for part in (*lines, *files):
        assert not re.search(r"array\(|tensor\(|\\x93NUMPY", part), part


@pytest.mark.parametrize("name", ["../../etc/evil", "/tmp/evil", "a/b", "..", ".hidden", "a\\b", "x" * 200, "", "a\nb"])
def test_an_experiment_cannot_name_another_folder(name: str, tmp_path: Path) -> None:
    content = resolve({}).model_dump(mode="json") | {"experiment": name}
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps({"resolved": content}))  # JSON is YAML
    with pytest.raises(ConfigError, match=r"^experiment: "):
        resolve({"experiment": str(file)})


@pytest.mark.parametrize("domain", ["../scan", "/etc/passwd", "scan/../../x", "scan\n"])
def test_a_domain_that_would_become_a_file_name_must_be_one_of_the_run(domain: str) -> None:
    with pytest.raises(ConfigError, match="unknown domain"):
        setup.place(resolve({}), make_context(1, {"domain": domain, "data-dir": "/data"}, {}), "deployment")
    with pytest.raises(ConfigError, match="has no domain"):
        resolve({"set": f"dataset.domains='[\"{domain.strip()}x\"]'"})


def test_a_real_node_does_not_let_the_server_say_which_of_its_files_are_read() -> None:
    given = {"domain": "scan", "data-dir": "/data", "partition-id": 0, "num-partitions": 1}
    with pytest.raises(RequestError, match="it takes no part in a simulation"):
        setup.place(resolve({}), make_context(1, given, {}), "simulation")


SHAPE = (32, 3, 5, 5)


@pytest.mark.parametrize(
    "change",
    [
        {"encoder.0.weight": np.zeros((1, *SHAPE[1:]), np.float32)},
        {"encoder.0.weight": np.zeros(SHAPE)},
        {"encoder.0.weight": np.full(SHAPE, np.nan, np.float32)},
        {"evil": np.zeros(3)},
    ],
    ids=["shape", "type", "nan", "name"],
)
def test_a_node_checks_the_servers_weights_against_its_model(change: dict[str, Any]) -> None:
    config = config_of(SHORT)
    weights = {name: tensor.numpy() for name, tensor in setup.initial_model(config).state_dict().items()}
    fields = {"server-round": 1, "node-index": 0, "engine": "simulation", "run": config.model_dump_json()}
    content = RecordDict({"arrays": encode(weights | change), "knowledge": encode({}), "config": ConfigRecord(fields)})
    (reply,) = inline.InlineGrid(client_app.app, 4).send_and_receive([Message(content, 1000, "train")])
    worded(reply.error.reason, *change)


def test_a_round_is_read_in_900_lines_and_the_page_has_their_numbers() -> None:
    lines = load_benchmark("code_lines").lines_of_a_round()
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert sum(lines.values()) <= 900
    assert [f"| `{name}` | {number} |" in page for name, number in lines.items()] == [True] * len(lines)
    assert f"Together {sum(lines.values())} lines" in page
