"""``fedshift supernode`` and plain ``flower-supernode``: the same numbers, a process per message, nothing left over.

Real processes. How long is waited: ``tests/fedshift_app/flower/test_quick.py``; what a warm process does:
``test_fork_server.py`` there.
"""

import contextlib
import socket
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from real_federation import opened
from refusals import refused
from support import ROOT, InlineRun, Run, json_lines, refusal_of
from typer.testing import CliRunner

from fedshift import cli
from fedshift.run.launch import processes, runner
from fedshift.site.deploy import demo, supernode
from fedshift_core.errors import ConfigError

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
    home = tmp_path / "site"

    def start(flower: Any, link: Any, folder: Any, key: Path) -> None:
        demo.start_supernode(flower, link, folder, key, plain=folder.index == 1)

    with opened(home, 2, TINY, start, FOUND=str(result), PYTHONPATH=f"{tmp_path / 'hand'}:{ROOT}") as site:

        def submit(name: str) -> Run:
            flat = {"method": "fedbn", "rounds": 1, "set": f"{TINY} federation.min_nodes=2 federation.node_timeout=900"}
            return Run(runner.submit(site.flower, home, flat | {"output-dir": str(tmp_path / name)}, []))

        runs = [submit("first")]
        (warm,) = processes_of(site.flower, "deploy.warm")
        warm.kill()
        runs.append(submit("second"))
        (executor,) = processes_of(site.flower, "superexec.py")
        executor.kill()  # the warm process ends with it; messages would wait for ever
        runs.append(submit("third"))
        log = site.flower.log("supernode-0").read_text(errors="replace")
    inline = run_inline(f"method=fedbn nodes=2 rounds=1 {TINY}")
    for run in runs:
        assert run.results["engine"] == "deployment"
        assert run.results["weights_sha256"] == inline.results["weights_sha256"]
    assert "it starts without them" not in log
    assert "the executor of this SuperNode has ended (by signal 9)" in log
    values = json_lines(result)
    assert [one["type"] for one in values] == ["query", "train", "evaluate"] * 3
    assert {one["left"] for one in values} == {None} and len({one["pid"] for one in values}) == 9
    assert warm.pid in {one["parent"] for one in values}
    assert {one["from"] for one in values} == {str(ROOT / "fedshift_app" / "__init__.py")}  # what is installed


def processes_of(flower: processes.Group, program: str) -> list[psutil.Process]:
    """Return a group's processes of one of our programs."""
    collected = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # gone, or another user's
            ours = process.environ().get(processes.MARK) == flower.env[processes.MARK]
            ours = ours and program in " ".join(process.cmdline())
            collected += [process] * (ours and Path(process.exe()).samefile(sys.executable))
    return collected
