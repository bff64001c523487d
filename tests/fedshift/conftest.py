"""A federation of real processes that several folders start."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import ROOT

Opened = Callable[..., AbstractContextManager[Any]]


@pytest.fixture(scope="session")
def opened() -> Opened:
    """Return a function that opens a SuperLink with TLS and SuperNodes with keys, of which `plain` is Flower's own."""
    from fedshift.run.launch import local_superlink, processes
    from fedshift.site.deploy import demo, exporting
    from fedshift_app.config.resolving import resolve
    from fedshift_app.node import state_folder
    from fedshift_datasets.io import cache

    @contextmanager
    def open_site(home: Path, nodes: int, settings: str, *, plain: int = -1, **more: str) -> Iterator[Any]:
        home.mkdir()
        folders = exporting.export(resolve({"experiment": "handwritten", "set": settings}), nodes, home / "nodes")
        own = {cache.CACHE_DIR: str(home / "cache"), state_folder.STATE_DIR: str(home / "state")}
        env = local_superlink.environment(home) | own | {"PYTHONPATH": str(ROOT)} | more
        with processes.group(local_superlink.empty_folder(home), env) as flower:
            link = local_superlink.SuperLink(processes.free_port(), demo.make_credentials(home))
            local_superlink.start_superlink(flower, link)
            local_superlink.connect(home, link)
            for folder in folders:
                key = demo.make_node_key(flower, home, folder)
                demo.start_supernode(flower, link, folder, key, plain=folder.index == plain)
            yield SimpleNamespace(home=home, flower=flower, link=link)

    return open_site
