"""Looks at files: what is seen of one, one that is not there, and one look for a whole start, and not for longer."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock, patch

import pytest
from data_refusals import refuses

from fedshift_datasets.io import looks


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    for name in "abc":
        (tmp_path / name).write_text(name)
    return tuple(str(tmp_path / name) for name in "abc")


@pytest.fixture
def asked() -> Iterator[Mock]:
    """Count the looks at files."""
    with patch.object(looks, "_entries", wraps=looks._entries) as counted:
        yield counted


def test_a_file_that_is_not_there_is_named(files: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "b").unlink()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert (looks.some(files)[:, looks.SIZE] < 0).tolist() == [False, True, False]
    with looks.handed_on():
        for _ in range(2):
            with refuses(tmp_path / "b"):
                looks.at(files)
    with refuses(tmp_path / "nowhere"):
        looks.at((str(tmp_path / "link"),))


def test_what_was_seen_is_handed_on_within_a_block_and_not_after_it(files: tuple[str, ...], asked: Mock) -> None:
    looks.at(files)
    looks.at(files)
    assert asked.call_count == 2
    with looks.handed_on():
        first = looks.at(files)
        Path(files[0]).write_text("longer")
        with looks.handed_on():
            assert looks.some(files) is first
        assert looks.at(files) is first and asked.call_count == 3
        assert looks.at(files, again=True)[0, looks.SIZE] == 6 and looks.at(files) is first
        with ThreadPoolExecutor() as pool:  # another thread may be another run
            assert pool.submit(looks.at, files).result()[:, looks.SIZE].tolist() == [6, 1, 1]
    assert looks.at(files)[0, looks.SIZE] == 6
    with suppress(KeyError), looks.handed_on():
        looks.at(files)
        raise KeyError
    before = asked.call_count
    looks.at(files)
    assert asked.call_count == before + 1
