"""Real nodes for tests: their app called directly by a server that asks what it likes, and whole runs on them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from real_node import SHORT
from support import InlineRun, ListeningGrid, Run

from fedshift.site.deploy import exporting
from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app import client_app, server_app
from fedshift_app.config.resolving import resolve
from fedshift_app.flower.internals import identify_process, make_context
from fedshift_app.node import setup, state_folder
from fedshift_app.run import build as run_build
from fedshift_core.wire import names

EVERY = {names.RUN_ID: "a" * 32, names.NODE_INDEX: 0, names.ENGINE: "deployment"}


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(state_folder.STATE_DIR, str(tmp_path / "state"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[NodeFolder]:
    """Return the images of two real nodes, 36 to train on and 90 to test on each."""
    config = resolve({"set": f"{SHORT} allocation.share=0.1"})
    return exporting.export(config, 2, tmp_path_factory.mktemp("real") / "nodes")


class AskedNode:
    """A SuperNode's app and its state; the server asks what it likes.

    Attributes:
        run: The configuration that messages bring, as JSON.
        owned: Whether the owner's policy refuses, not the run's configuration.
        weights: What messages bring; those of the configuration where it is None.
    """

    def __init__(self, folder: NodeFolder, file: Path | None = None, given: str = "", **flat: Any) -> None:
        identify_process()
        self.file, self.owned, self.domain = file, file is not None, folder.domain
        config = {"domain": folder.domain, "data-dir": str(folder.path), "policy": str(file or "open")}
        self.context: Context = make_context(7, config, {})
        self.configure(given, **flat)

    def configure(self, given: str = "", **flat: Any) -> None:
        """Let the next messages be of a run with these settings."""
        self.config = resolve({"rounds": 10, "set": f"{SHORT} {given}"} | flat)
        self.run, self.weights = self.config.model_dump_json(), None

    def allow(self, policy: str = "") -> None:
        """Write the owner's file."""
        assert self.file is not None
        self.file.write_text(policy)
        self.file.chmod(0o600)

    def ask(
        self,
        kind: str,
        server_round: Any = 1,
        records: dict[str, Any] | None = None,
        given: str | None = None,
        method: str = "fedavg",
        **more: Any,
    ) -> Message:
        """Return the reply to a message; of an owned node each is of a run of its own, with what is ``given``."""
        if self.owned:
            self.configure(given or "", method=method)
            self.context.state = RecordDict()
        if self.weights is None:
            self.weights: ArrayRecord | None = run_build.prepare(self.config, "deployment")[0]
        entries = EVERY | {names.RUN: self.run, names.SERVER_ROUND: server_round}
        entries |= {key.replace("_", "-"): value for key, value in more.items()}
        config = ConfigRecord({key: value for key, value in entries.items() if value is not None})
        content = RecordDict({"arrays": self.weights, "knowledge": ArrayRecord(), "config": config})
        content.update(records or {})
        return client_app.app(Message(content, self.context.node_id, kind), self.context)

    def refused(self, kind: str, *given: Any, **more: Any) -> str:
        """Return why a message is refused, as the server reads it; nothing of an answer may be in the reply."""
        reply = self.ask(kind, *given, **more)
        assert reply.has_error(), dict(reply.content)
        reason = str(reply.error.reason)
        assert "\n" not in reason and str(self.file) not in reason
        assert reply.error.code == names.DECLINED if self.owned else reason.startswith("refused: "), reason
        return reason

    def answers(self, kind: str, *given: Any, **more: Any) -> RecordDict:
        """Return the content of the reply to a message."""
        reply = self.ask(kind, *given, **more)
        assert not reply.has_error(), reply.error.reason
        return reply.content


@pytest.fixture
def real(folders: list[NodeFolder]) -> Callable[..., AskedNode]:
    """Return a function that makes a node whose owner allows all, in a run with these settings."""
    return lambda given="", **flat: AskedNode(folders[0], None, given, **flat)


@pytest.fixture
def owned(tmp_path: Path) -> Callable[[NodeFolder], AskedNode]:
    """Return a function that makes a node with a policy file of its owner."""
    return lambda folder: AskedNode(folder, tmp_path / "policy.yaml")


@pytest.fixture
def on_real_nodes(run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Return a function that runs an experiment on real nodes in this process, each with such a node-config."""

    def run(configs: Sequence[dict[str, Any]], *, grid: type[ListeningGrid] = ListeningGrid, **flat: Any) -> Run:
        def nodes(*args: Any) -> ListeningGrid:
            made = grid(*args)
            for i, config in enumerate(configs):
                made._contexts[1000 + i] = make_context(1000 + i, {"partition-id": i} | config, {})
            return made

        with monkeypatch.context() as patch:
            patch.setattr(server_app, "_engine", lambda grid: setup.DEPLOYMENT)
            return run_inline(grid=nodes, nodes=len(configs), **flat)

    return run
