"""`log.jsonl` and FEDSHIFT_LOG: one JSON object per line, whatever a node sends."""

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support import ROOT, InlineRun, json_lines
from traffic import changing, lost

from fedshift_app.run import logs
from fedshift_app.run.logs import MOST_MESSAGE, JsonLine, cleaned

SHORT = "train.epochs=1 allocation.share=0.05"


def lines(folder: Path) -> list[dict[str, Any]]:
    return json_lines(folder / logs.LOG_FILE)


def test_each_line_of_a_run_is_an_object_with_its_fields(run_inline: InlineRun) -> None:
    run = run_inline(f"rounds=2 {SHORT}", grid=changing(lost, "train", [1], [1]))
    result = lines(run.folder)
    assert [line.get("event") for line in result] == ["started", "left_out", "round", "round", "finished", "degraded"]
    for line in result:
        assert list(line)[:4] == ["time", "level", "logger", "message"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
    left_out = {"level": "warning", "logger": "fedshift", "round": 1, "node": 1, "domain": "texture"}
    assert left_out.items() <= result[1].items()
    assert [line["round"] for line in result[2:4]] == [1, 2]


def record(message: str, **more: Any) -> logging.LogRecord:
    return logging.getLogger("fedshift").makeRecord("fedshift", logging.INFO, "", 0, "%s", (message,), None, extra=more)


@given(st.text(max_size=3 * MOST_MESSAGE))
def test_any_text_becomes_one_bounded_line(text: str) -> None:
    line = JsonLine().format(record(text))
    assert "\n" not in line
    message = json.loads(line)["message"]
    assert message == cleaned(text) and len(message) <= MOST_MESSAGE
    assert all(letter.isprintable() or letter == "\n" for letter in message)


def test_an_exception_is_reported_without_its_traceback() -> None:
    try:
        raise RuntimeError("a\x1b[2Jb" * 1000)
    except RuntimeError:
        failed = record("it failed")
        failed.exc_info = sys.exc_info()
    line = json.loads(JsonLine().format(failed))
    assert line["error"].startswith("RuntimeError: a [2Jb") and len(line["error"]) <= 500
    assert "Traceback" not in str(line)


#: Each value of the variable in a child of one process, which has imported what takes long.
IN_EACH_FORMAT = f"""
import os, sys
from fedshift_app.run import console
for value in sys.argv[1:]:
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
        print("--", flush=True)
        continue
    os.environ[{logs.FORMAT!r}] = value
    console.set_up()
    console.log.info("hello", extra={{"node": 3}})
    sys.exit()
"""


def test_the_format_of_standard_output_is_asked_for_by_the_environment() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", IN_EACH_FORMAT, "json", "xml\x1b", ""], env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    as_json, unknown, empty, _ = ended.stdout.split("--\n")
    line = json.loads(as_json)
    assert (line["message"], line["node"], line["level"]) == ("hello", 3, "info")
    warning, text = unknown.splitlines()
    assert "'xml '" in warning and text == "hello"
    assert empty == "hello\n"
