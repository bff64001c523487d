"""Real nodes with keys and policies, called in this process, for runs with secure sums."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import own_sites
import pytest
from real_node import fingerprint
from support import InlineRun, ListeningGrid, Run
from traffic import changing, lost

from fedshift.run.launch import credentials
from fedshift_app import server_app
from fedshift_app.flower.internals import make_context
from fedshift_app.node import node_key, setup, state_folder
from fedshift_core.wire import names

SITES = ("north", "south", "west")
FOUR = (*SITES, "east")
SUMS = (
    "dataset.classes=[bar,cross,disc] dataset.size=32 model.name=cnn train.epochs=1 train.precision=float32 "
    "federation.secure_sums=on federation.log_received=true federation.node_timeout=1"
)
Change = Callable[[list[Any]], list[Any]]


def real_nodes(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let nodes in this process be real ones, with a state folder for the test."""
    monkeypatch.setenv(state_folder.STATE_DIR, str(folder / "state"))
    monkeypatch.setattr(node_key, "_asked", None)
    monkeypatch.setattr(server_app, "_engine", lambda grid: setup.DEPLOYMENT)


#: Loses what the fourth node has trained.
LAST_LOST = changing(lost, "train", [3])


class Sites:
    """Nodes with images and a key each, and a policy that trusts the keys of all.

    Args:
        folder: For images, keys and the policy.
        run_inline: The fixture.
        sites: Their domains.
        held: Classes of those that do not have all.
        sums: What the policy says of secure sums in addition to the keys.
        number: Images of each.
    """

    def __init__(
        self, folder: Path, run_inline: InlineRun, sites: Sequence[str] = SITES,
        held: Mapping[str, Sequence[str]] | None = None, sums: str = "nodes: 3", number: int = 30,
    ) -> None:  # fmt: skip
        self._run, self._sites, self._images = run_inline, tuple(sites), folder / "images"
        own_sites.write(self._images, sites, number)
        for site, classes in (held or {}).items():
            for kind in {*own_sites.CLASSES} - {*classes}:
                for one in [*(self._images / site).rglob(kind)]:
                    shutil.rmtree(one)
        (folder / "keys").mkdir()
        self.keys: dict[str, Any] = {}
        trusted = []
        for site in sites:
            public, private = sorted(credentials.make_node(folder / "keys", site), key=lambda path: path.suffix)[::-1]
            self.keys[site] = node_key.serve(private)
            trusted.append(fingerprint(public))
        self._policy = folder / "policy.yaml"
        self._policy.write_text(f"secure_sums: {{{sums}, trusted: {json.dumps(trusted)}}}\n")
        self._policy.chmod(0o600)

    def grid(self, sites: Sequence[str], change: Mapping[str, Change], base: type[ListeningGrid]) -> Any:
        """Return a maker of a grid of these nodes with their keys; ``change`` is of entries of messages with shares."""
        keys = self.keys

        class Grid(base):  # type: ignore[misc, valid-type]
            def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
                replies: Any = []
                for message in messages:
                    config: Any = message.content.config_records["config"]
                    if config.get(names.SECURE_STAGE) == "shares":
                        config.update({key: of(config[key]) for key, of in change.items()})
                    node_key._asked = keys[sites[message.metadata.dst_node_id - 1000]]
                    replies += super().send_and_receive([message], timeout=timeout)
                return replies

        def nodes(*args: Any) -> Any:
            grid = Grid(*args)
            for i, site in enumerate(sites):
                given = {
                    "domain": site, "data-dir": str(self._images / site),
                    "partition-id": self._sites.index(site), "policy": str(self._policy),
                }  # fmt: skip
                grid._contexts[1000 + i] = make_context(1000 + i, given, {})
            return grid

        return nodes

    def run(
        self, rounds: int, *, sites: Sequence[str] = (), method: str = "fedproto",
        more: str = "method.share_weights=true", base: type[ListeningGrid] = ListeningGrid, seed: int = 0,
        **change: Change,
    ) -> Run:  # fmt: skip
        """Return a run with all nodes, or with these."""
        taking = tuple(sites) or self._sites
        words = f"{SUMS} dataset.domains=[{','.join(taking)}] federation.min_nodes={len(taking)} {more}"
        return self._run(
            method=method, dataset="folders", data_dir=str(self._images), nodes=len(taking), rounds=rounds,
            seed=seed, set=words, grid=self.grid(taking, change, base),
        )  # fmt: skip


#: Makes real nodes with keys: the fixture ``sites``.
MakeSites = Callable[..., Sites]
