"""What several tests of data sets need."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import kept_photos
import pytest

from fedshift_datasets.io import cache, pool, sites


@pytest.fixture(autouse=True)
def cache_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which a test of its own keeps decoded images."""
    monkeypatch.setenv(cache.CACHE_DIR, str(tmp_path / "cache-home"))
    return tmp_path / "cache-home"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a folder of ten images of two classes."""
    return kept_photos.drawn(tmp_path / "photos")


@pytest.fixture
def looks() -> Iterator[Mock]:
    """Count the looks at a site's folder."""
    with patch.object(sites, "look", wraps=sites.look) as counted:
        yield counted


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the files that are given to decoding processes from here on."""
    names: list[str] = []
    tried = pool.tried

    def counted(work: Callable[[Any], Any], items: Iterable[Any], workers: int) -> Iterator[Any]:
        items = list(items)
        names.extend(Path(str(getattr(item, "path", item))).name for item in items)
        return tried(work, items, workers)

    monkeypatch.setattr(pool, "tried", counted)
    return names
