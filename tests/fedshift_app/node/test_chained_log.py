"""The log's file: a chain that shows each kind of tampering, writers that wait for one another, one that dies."""

import json
import multiprocessing
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedshift.site import log
from fedshift_app.node import chained_log
from fedshift_app.node.chained_log import HEAD_FILE, LOG_FILE, Head, LogError

REPLY = {
    "kind": "reply",
    "time": "2026-11-26T01:00:00.000Z",
    "run": "a" * 32,
    "flower_run": "1",
    "message": "train",
    "images": 5,
}


def reply(number: int, items: int = 2) -> list[dict[str, Any]]:
    """Return the lines of one reply."""
    whole = {**REPLY, "round": number, "items": items, "bytes": 8 * items}
    return [whole, *({"kind": "number", "name": f"metrics/{i}", "bytes": 8} for i in range(items))]


def write(folder: Path, entries: list[dict[str, Any]]) -> None:
    with chained_log.locked(folder):
        chained_log.append(folder, entries)


def written(folder: Path, replies: int = 4) -> list[bytes]:
    """Write some replies; return the lines."""
    for number in range(1, replies + 1):
        write(folder, reply(number))
    return (folder / LOG_FILE).read_bytes().splitlines()


def rewrite(folder: Path, lines: list[bytes]) -> None:
    (folder / LOG_FILE).write_bytes(b"".join(line + b"\n" for line in lines))


def rounds(folder: Path) -> list[int]:
    return [sent.round for sent in log.read(folder).sent]


def test_lines_are_numbered_and_chained_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "node-0"
    lines = written(folder)
    before = chained_log.NOTHING
    for number, line in enumerate(lines, 1):
        entry = json.loads(line)
        assert (entry["n"], entry["before"]) == (number, before)
        before = chained_log.digest(line)
    assert Head.read(folder) == Head(lines=12, bytes=sum(len(line) + 1 for line in lines), sha256=before)
    checked = log.read(folder)
    assert (checked.problems, checked.lines, checked.interrupted) == ([], 12, 0)
    assert [(sent.round, sent.items, sent.bytes) for sent in checked.sent] == [(n, 2, 16) for n in (1, 2, 3, 4)]
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def changed(line: bytes, data: st.DataObject) -> bytes:
    """Return the line with a bit that flipped, anywhere."""
    content = bytearray(line)
    content[data.draw(st.integers(0, len(line) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    return bytes(content)


@settings(max_examples=80)
@given(st.sampled_from(["change", "remove", "swap", "repeat", "cut", "bytes", "head", "no-head", "no-log"]), st.data())
def test_whatever_is_changed_removed_swapped_added_or_cut_off_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("log") / "node"
    lines = written(folder, data.draw(st.integers(1, 4)))
    place = data.draw(st.integers(0, len(lines) - 1))
    match kind:
        case "change":
            rewrite(folder, [*lines[:place], changed(lines[place], data), *lines[place + 1 :]])
        case "remove":
            rewrite(folder, [*lines[:place], *lines[place + 1 :]])
        case "swap":
            second = data.draw(st.integers(0, len(lines) - 1).filter(lambda i: i != place))
            lines[place], lines[second] = lines[second], lines[place]
            rewrite(folder, lines)
        case "repeat":
            rewrite(folder, [*lines[: place + 1], *lines[place:]])
        case "cut":
            rewrite(folder, lines[:place])
        case "bytes":  # the end of the file, within a line
            (folder / LOG_FILE).write_bytes((folder / LOG_FILE).read_bytes()[: -data.draw(st.integers(1, 50))])
        case "head":
            head = Head.read(folder)
            assert head is not None
            head.model_copy(update={"sha256": chained_log.digest(b"other")}).write(folder)
        case "no-head":
            (folder / HEAD_FILE).unlink()
        case "no-log":
            (folder / LOG_FILE).unlink()
    assert log.read(folder).problems, kind


def test_nothing_is_appended_to_a_log_that_is_not_what_its_head_says(tmp_path: Path) -> None:
    """It would hide what is missing."""
    for name, why in (("cut", "line 12"), ("changed", "line 12"), ("headless", "is missing")):
        folder = tmp_path / name
        *lines, last = written(folder)
        if name == "headless":
            (folder / HEAD_FILE).unlink()
        else:
            rewrite(folder, lines if name == "cut" else [*lines, last.replace(b'"metrics/1"', b'"metrics/2"')])
        before = (folder / LOG_FILE).read_bytes()
        with pytest.raises(LogError, match=why):
            write(folder, reply(5))
        assert (folder / LOG_FILE).read_bytes() == before


@pytest.mark.parametrize("torn", [0, 1, 30])
@pytest.mark.parametrize("whole", [0, 1, 2, 3])
def test_what_a_dying_process_leaves_is_marked_and_did_not_leave(tmp_path: Path, torn: int, whole: int) -> None:
    """It may die after any byte: the head is written last."""
    written(tmp_path, 2)
    head = (tmp_path / HEAD_FILE).read_bytes()
    write(tmp_path, reply(3))
    lines = (tmp_path / LOG_FILE).read_bytes().splitlines(keepends=True)
    rest = b"".join(lines[6 : 6 + whole]) + (lines[6 + whole][:torn] if whole < 3 else b"")
    (tmp_path / LOG_FILE).write_bytes(b"".join(lines[:6]) + rest)
    (tmp_path / HEAD_FILE).write_bytes(head)

    for number, left in ((4, [1, 2]), (5, [1, 2, 4]), (6, [1, 2, 4, 5])):
        found = log.read(tmp_path)
        assert (found.problems, found.interrupted, rounds(tmp_path)) == ([], bool(rest), left)
        write(tmp_path, reply(number))
    assert (tmp_path / LOG_FILE).read_bytes().startswith(b"".join(lines[:6]) + rest)  # nothing was taken away


def test_a_process_may_die_again_while_it_marks_what_another_left(tmp_path: Path) -> None:
    written(tmp_path, 1)
    head = (tmp_path / HEAD_FILE).read_bytes()
    for cut in (40, 25, 3):  # each one dies within its mark, or within its reply
        with (tmp_path / LOG_FILE).open("ab") as file:
            file.write(b'{"n": 4, "time": "2026-11-26T01:00:00.000Z", "kind": "reply"'[:cut])
        write(tmp_path, reply(9))
        (tmp_path / HEAD_FILE).write_bytes(head)
        with (tmp_path / LOG_FILE).open("r+b") as file:
            file.truncate((tmp_path / LOG_FILE).stat().st_size - cut)
    write(tmp_path, reply(2))
    assert log.read(tmp_path).problems == []
    assert rounds(tmp_path) == [1, 2]


def _work(folder: Path, worker: int, number: int) -> None:
    for i in range(number):
        write(folder, reply(1000 * worker + i, items=worker))


def test_processes_of_one_node_wait_for_one_another(tmp_path: Path) -> None:
    folder, number = tmp_path / "state" / "node", 25
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_work, args=(folder, worker, number)) for worker in (1, 2, 3, 4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    checked = log.read(folder)
    assert checked.problems == []
    assert checked.lines == number * sum(1 + worker for worker in (1, 2, 3, 4))
    for w in (1, 2, 3, 4):
        assert [sent.round for sent in checked.sent if sent.items == w] == [1000 * w + i for i in range(number)]


def test_the_lock_is_no_link_to_elsewhere(tmp_path: Path) -> None:
    (tmp_path / chained_log.LOCK_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        write(tmp_path, reply(1))
    assert [path.name for path in tmp_path.iterdir()] == [chained_log.LOCK_FILE]
