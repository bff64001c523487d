"""What several tests of data sets need."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import refusals

from fedshift_core.errors import DataError
from fedshift_datasets.base import Source
from fedshift_datasets.io import pool, sites


@pytest.fixture
def refuses(tmp_path: Path) -> Callable[..., AbstractContextManager[None]]:
    """Expect a DataError of at most two lines that names values; the wording is kept as in ``refusals.py``.

    Left out of it are the test's folder, whose number differs between runs, and what a library says of a file. The
    text is the whole one: where it would be cut depends on the folder. ``worded=False`` keeps none.
    """

    def without_place(text: object) -> str:
        return str(text).replace(str(tmp_path), "ROOT")

    @contextmanager
    def refusing(*named: object, worded: bool = True) -> Iterator[None]:
        with pytest.raises(DataError) as caught:
            yield
        assert str(caught.value).count("\n") <= 1
        message = without_place(f"{caught.value.text}\n{caught.value.remedy}".rstrip())
        missing = [name for name in map(without_place, named) if name not in message]
        assert not missing, f"{missing} not named in: {message}"
        if worded:
            refusals.worded(re.sub(r"cannot be (\w+) \((\w+): .*\)", r"cannot be \1 (\2)", message))

    return refusing


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Count the looks at a site's folder."""
    looked: list[str] = []
    look = sites.look

    def counted(domain: str, source: Source, *, own: bool) -> sites.Site | None:
        looked.append(domain)
        return look(domain, source, own=own)

    monkeypatch.setattr(sites, "look", counted)
    return looked


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
