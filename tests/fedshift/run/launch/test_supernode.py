"""``fedshift supernode`` and plain ``flower-supernode``: the same numbers, a process per message, nothing left over.

Real processes. How long is waited: ``tests/fedshift_app/flower/test_quick.py``; what a warm process does:
``test_fork_server.py`` there.
"""

import json
import socket
import sys
from pathlib import Path

import psutil
import pytest
from refusals import refused
from support import ROOT, InlineRun, Run, refusal_of
from typer.testing import CliRunner

from fedshift import cli
from fedshift.run.launch import local_superlink, processes, runner
from fedshift.site.deploy import demo as deploy_demo
from fedshift.site.deploy import exporting, supernode
from fedshift_app.config import resolving as configuration
from fedshift_app.node import state_folder
from fedshift_core.errors import ConfigError
from fedshift_datasets.io import cache

#: A method whose nodes keep a part to themselves, so that its state goes from message to message.
TINY = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05 model.name=cnn_bn"

#: Put into the Python of the warm node: each message leaves something behind, and tells what it finds.
HAND = """
import json, os, sys
if any("deploy.warm" in word for word in sys.orig_argv):
    from flwr.clientapp import ClientApp
    ordinary = ClientApp.__call__

    def watched(app, message, context):
        import fedshift_app
        found = {"left": getattr(fedshift_app, "left", None), "pid": os.getpid(), "parent": os.getppid(),
                 "threads": len(os.listdir("/proc/self/task")), "from": fedshift_app.__file__,
                 "type": message.metadata.message_type}
        with open(os.environ["FOUND"], "a") as file:
            print(json.dumps(found), file=file)
        fedshift_app.left = os.getpid()
        return ordinary(app, message, context)

    ClientApp.__call__ = watched
"""


def test_the_command_passes_all_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[str], bool, bool]] = []
    monkeypatch.setattr(supernode, "serve", lambda given, warm, keep_model: seen.append((given, warm, keep_model)))
    options = ["--insecure", "--superlink", "localhost:8000", "--node-config", 'domain="scan" partition-id=0']
    for own in (["--cold"], [], ["--keep-model"]):
        assert CliRunner().invoke(cli.app, ["supernode", *own, *options]).exit_code == 0
    options[-1] += ' policy="strict" policy-sha256=""'
    assert seen == [(options, False, False), (options, True, False), (options, True, True)]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--insecure", "--allow-runtime-dependency-installation"], "--allow-runtime"),
        (["--insecure", "--allow"], "--allow-runtime"), (["--insecure", "--isol=process"], "--isolation process"),
        # Flower would take the last one without a word, also where the first one names the owner's policy.
        *(([option, "policy=1", f"{option}=policy=2"], f"{option} is given 2 times")
          for option in ("--node-config", "--root-certificates", "--auth-supernode-private-key")),
    ],
)  # fmt: skip
def test_options_that_a_node_must_not_have_are_refused(options: list[str], named: str) -> None:
    with refused(ConfigError, named):
        supernode.serve(["--superlink", "localhost:8000", *options])


def test_two_nodes_of_one_machine_get_a_port_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where both start at once, and where Flower's own port is taken."""
    from fedshift.site.deploy import node_waits

    seen: list[list[str]] = []
    monkeypatch.setattr(node_waits, "run_supernode", lambda options, warm, key: seen.append(options))
    options = ["--insecure", "--superlink", "localhost:8000", "--node-config", 'port="--port"']
    for _ in range(2):
        supernode.serve(options)
    named = [*options, "--por", str(processes.free_port())]
    supernode.serve(named)
    assert seen.pop() == named  # a port that is named stays
    assert all(one[: len(options)] == options and one[-2] == "--port" for one in seen)
    ports = [int(one[-1]) for one in seen]
    assert len({*ports, 9094}) == 3 and all(1024 < port < 65536 for port in ports)


def serve(*options: str) -> str:
    """Return the error of a SuperNode that must not start."""
    return refusal_of(ConfigError, supernode.serve, ["--superlink", "localhost:8000", *options])


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for options in (["--port", str(port)], [f"--port={port}", "--host", "127.0.0.1"]):
            error = serve("--insecure", *options)
            assert error.startswith(f"--port {port}: cannot listen on it at 127.0.0.1: Address already in use; name")


@pytest.mark.parametrize("content", [None, b"", b"no cert", b"\xff"])
def test_a_file_without_a_certificate_is_refused_before_the_start(content: bytes | None, tmp_path: Path) -> None:
    """Flower would fail when it connects, in a process that does not end."""
    file = tmp_path / "ca.crt"
    if content is not None:
        file.write_bytes(content)
    error = serve("--root-certificates", str(file))
    assert error.startswith(f"--root-certificates {file}: expected the certificate of a CA in PEM (ca.crt), found: ")


@pytest.mark.slow
@pytest.mark.long
def test_a_warm_node_and_a_plain_one_have_the_numbers_of_one_process(tmp_path: Path, run_inline: InlineRun) -> None:
    """Over three runs; before the second a warm process is killed, before the third the executor."""
    (tmp_path / "hand").mkdir()
    (tmp_path / "hand" / "sitecustomize.py").write_text(HAND)
    result = tmp_path / "found.jsonl"
    own = {
        cache.CACHE_DIR: str(tmp_path / "cache"),
        state_folder.STATE_DIR: str(tmp_path / "state"),
        "FOUND": str(result),
    }
    paths = {"PYTHONPATH": f"{tmp_path / 'hand'}:{ROOT}"}
    folders = exporting.export(configuration.resolve({"set": TINY}), 2, tmp_path / "nodes")
    with processes.group(
        local_superlink.empty_folder(tmp_path), local_superlink.environment(tmp_path) | own | paths
    ) as flower:
        link = local_superlink.SuperLink(processes.free_port())
        local_superlink.start_superlink(flower, link)
        local_superlink.connect(tmp_path, link)
        deploy_demo.start_supernode(flower, link, folders[0], None)
        deploy_demo.start_supernode(flower, link, folders[1], None, plain=True)
        flat = {"method": "fedbn", "rounds": 2, "set": f"{TINY} federation.min_nodes=2"}
        first = Run(runner.submit(flower, tmp_path, flat | {"output-dir": str(tmp_path / "first")}, []))
        warm = warm_processes(flower)
        assert len(warm) == 1
        warm[0].kill()
        second = Run(runner.submit(flower, tmp_path, flat | {"output-dir": str(tmp_path / "second")}, []))
        (executor,) = processes_of(flower, "superexec.py")
        executor.kill()  # the warm process ends with it; messages would wait for ever
        third = Run(runner.submit(flower, tmp_path, flat | {"output-dir": str(tmp_path / "third")}, []))
        log = flower.log("supernode-0").read_text(errors="replace")
    inline = run_inline(method="fedbn", nodes=2, rounds=2, set=TINY)
    for run in (first, second, third):
        assert run.results["engine"] == "deployment"
        assert run.results["weights_sha256"] == inline.results["weights_sha256"]
    assert "it starts without them" not in log
    assert "the executor of this SuperNode has ended (by signal 9)" in log
    values = [json.loads(line) for line in result.read_text().splitlines()]
    assert [one["type"] for one in values] == ["query", *["train", "evaluate"] * 2] * 3
    assert [one["left"] for one in values] == [None] * 15
    assert len({one["pid"] for one in values}) == 15
    assert {one["parent"] for one in values} >= {process.pid for process in warm}
    assert {one["from"] for one in values} == {str(ROOT / "fedshift_app" / "__init__.py")}  # what is installed


def warm_processes(flower: processes.Group) -> list[psutil.Process]:
    """Return the warm processes of a group, in the order in which they were started."""
    return processes_of(flower, "deploy.warm")


def processes_of(flower: processes.Group, program: str) -> list[psutil.Process]:
    """Return a group's processes of one of our programs, in the order in which they were started."""
    collected = []
    for process in psutil.process_iter():
        try:
            if (
                process.environ().get(processes.MARK) == flower.env[processes.MARK]
                and program in " ".join(process.cmdline())
                and Path(process.exe()).samefile(sys.executable)
            ):
                collected.append(process)
        except psutil.Error:  # gone, or another user's
            continue
    return sorted(collected, key=psutil.Process.create_time)
