"""Errors that a test expects: their type and what they name are asserted, their wording is kept in a file per room.

``make messages`` (or ``make messages files="tests/..."``: whole files) writes tests/messages/ROOM.json anew from what
those tests meet; a changed wording is then read as a difference in git.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from fedshift_core.errors import FedShiftError

TESTS = Path(__file__).parent
KEPT = TESTS / "messages"
#: Set to a file where messages are noted, one JSON line each, instead of being compared.
NOTES = "FEDSHIFT_TEST_MESSAGES"


@contextmanager
def refused(error: type[BaseException], *named: object) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """Expect `error`, whose message names each of `named` (keys, values, files) and is worded as in the room's file."""
    with pytest.raises(error) as caught:
        yield caught
    _names(str(caught.value), named)
    worded(_whole(caught.value))


def worded(text: str, *named: object) -> None:
    """Expect that `text` names each of `named`, and is the one that the room's file keeps for the running test."""
    _names(text, named)
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0].removeprefix("tests/")
    said = _without_places(text)
    if NOTES in os.environ:
        with Path(os.environ[NOTES]).open("a", encoding="utf-8") as notes:
            notes.write(json.dumps([test, said]) + "\n")
        return
    kept = [_without_places(text) for text in _kept(KEPT / f"{_room(test)}.json").get(test, [])]
    assert said in kept, f"another wording than tests/messages has; if it is meant: make messages\n{said}\nkept: {kept}"


def _names(text: str, named: tuple[object, ...]) -> None:
    missing = [str(one) for one in named if str(one) not in text]
    assert not missing, f"{missing} not named in: {text}"


def _whole(error: BaseException) -> str:
    """Return the text of an error before it is cut, which would depend on the length of a test's folder."""
    return f"{error.text or error}\n{error.remedy}".rstrip() if isinstance(error, FedShiftError) else str(error)


def write(notes: Path) -> None:
    """Replace, in the rooms' files, what they keep for the test files that `notes` names."""
    rooms: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for line in notes.read_text(encoding="utf-8").splitlines():
        test, said = json.loads(line)
        if said not in rooms[_room(test)][test]:
            rooms[_room(test)][test].append(said)
    for room, tests in rooms.items():
        path, files = KEPT / f"{room}.json", {test.split("::")[0] for test in tests}
        others = {test: said for test, said in _kept(path).items() if test.split("::")[0] not in files}
        kept = {test: said for test, said in others.items() if (TESTS / test.split("::")[0]).exists()} | tests
        path.write_text(json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


@cache
def _kept(path: Path) -> dict[str, list[str]]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _room(test: str) -> str:
    """Return the room of a test: the one or two folders that its file is in."""
    return "-".join(test.split("::")[0].split("/")[:-1][:2]) or "tests"


def _without_places(text: str) -> str:
    """Return a text without what differs between runs: temporary folders, times, the folder of the checkout."""
    for place in {tempfile.gettempdir(), str(Path(tempfile.gettempdir()).resolve())}:
        text = re.sub(rf"{re.escape(place)}/(pytest-of-[^/]+/pytest-\d+/(popen-gw\d+/)?)?", "TMP/", text)
    text = re.sub(r"TMP/test_\w+", "TMP/TEST", re.sub(r"-\d{8}-\d{6}(-\d+)?\b", "-TIME", text))  # of a run folder
    return text.replace(str(TESTS.parent), "CHECKOUT")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
