"""`log.jsonl` and FEDSHIFT_LOG: one JSON object per line, whatever a node sends."""

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT, InlineRun, json_lines
from traffic import changing, lost

from fedshift_app.config.resolving import resolve
from fedshift_app.run import console, logs
from fedshift_app.run.console import duration, round_line
from fedshift_app.run.logs import MOST_MESSAGE, JsonLine, cleaned
from fedshift_strategies.federation.context import RoundResult

SHORT = "dataset.domains=[scan,texture] train.epochs=1 allocation.share=0.05"


def lines(folder: Path) -> list[dict[str, Any]]:
    return json_lines(folder / logs.LOG_FILE)


def test_each_line_of_a_run_is_an_object_with_its_fields(run_inline: InlineRun) -> None:
    run = run_inline(f"nodes=3 rounds=2 {SHORT}", grid=changing(lost, "train", [1], [1]))
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


# --- the screen ---------------------------------------------------------------------------------------------


DOMAINS = {"mnist": 91.26, "usps": 75.0, "mnistm": 68.14}
FINAL = {"mnist": 92.0, "usps": 76.0, "mnistm": 69.0}
BEST = {"mnist": 93.0, "usps": 77.0, "mnistm": 70.0}
OTHER = {"mnist": 1.0, "usps": 2.0, "mnistm": None}


def table(**changes: Any) -> str:
    """Return the final table of seven rounds on three domains."""
    results = {
        "method": "i2pfl", "dataset": "digits", "model": "resnet10", "bn": "average", "evaluated": "global model",
        "seed": 3, "nodes": [{}] * 6, "averaged_rounds": 5, "domains": DOMAINS, "final": FINAL,
        "best_test": {"round": 4, "domains": BEST, "avg": 80.0}, "avg": 78.13, "std": 11.88,
    }  # fmt: skip
    return console.table(results | changes, resolve({}))


@pytest.mark.parametrize(
    ("result", "parts"),
    [
        (
            RoundResult(3, {"a": 90.04, "b": 70.0}, losses={"loss": 0.51234}, seconds=12.34),
            "round  3/10  a 90.0  b 70.0  avg 80.0  worst b 70.0  loss 0.512  12.3 s",
        ),
        (
            RoundResult(10, {"a": None, "b": 50.0}, lost=[3]),  # it has no average
            "round 10/10  a missing  b 50.0  avg missing  without 1 node  0.0 s",
        ),
        (RoundResult(2), "round  2/10  0.0 s"),  # not scored
        (RoundResult(2, {"a": 50.0}), "round  2/10  a 50.0  avg 50.0  0.0 s"),  # no worst of one
    ],
)
def test_the_line_of_a_round(result: RoundResult, parts: str) -> None:
    assert round_line(result, rounds=10, left=83.7) == f"{parts}  left 1:24"


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        (
            {},
            ["mnist 91.3 92.0 93.0", "usps 75.0 76.0 77.0", "mnistm 68.1 69.0 70.0", "AVG 78.1 79.0 80.0", "STD 11.9"],
        ),
        ({"domains": {"usps": 75.0}, "avg": 75.0, "std": 0.0}, ["STD"]),  # one domain has no spread
        (
            {"domains": DOMAINS | {"usps": None}, "final": FINAL | {"mnist": None}},
            ["usps missing 76.0 77.0", "mnist 91.3 missing 93.0", "AVG missing missing 80.0"],
        ),
        (
            {"best_validation": {"round": 2, "chosen_on": "validation images", "domains": OTHER, "avg": 1.5}},
            ["usps 75.0 76.0 77.0 2.0", "mnistm 68.1 69.0 70.0 missing", "AVG 78.1 79.0 80.0 missing"],
        ),
        ({"others": {"bn=own": OTHER}}, ["mnist 91.3 92.0 1.0 93.0"]),
        ({"averaged_over": [60, 70, 80, 90, 100]}, ["AVG 78.1 79.0 80.0"]),
    ],
)
def test_a_table_has_a_row_of_each_domain_and_of_averages(changes: dict[str, Any], rows: list[str]) -> None:
    text = table(**changes)
    assert {*rows} <= {" ".join(line.split()) for line in text.splitlines()}
    assert all(line.isprintable() for line in text.splitlines())
    assert ("60, 70, 80, 90, 100" in text) == ("averaged_over" in changes)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.4, "0:00"), (59.6, "1:00"), (3599.0, "59:59"), (7384.0, "2:03:04"), (2 * 86_400.0 + 304.0, "2 d 0:05:04")],
)
def test_duration(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


# --- where the time goes ------------------------------------------------------------------------------------


def test_a_profiled_run_tells_where_its_time_went_and_changes_no_number(run_inline: InlineRun) -> None:
    plain, run = (run_inline(f"method=i2pfl nodes=2 rounds=2 profile={on} {SHORT}") for on in ("false", "true"))
    assert plain.results["weights_sha256"] == run.results["weights_sha256"]
    assert not (plain.folder / "profile.json").exists() and "profile" not in plain.rounds[0]
    for line in run.rounds:
        server, nodes = (line["profile"][side] for side in ("server", "nodes"))
        assert {*server} == {"messages", "training", "averaging", "evaluation"}
        assert {*nodes} == {"data", "forward/backward", "messages", "evaluation", "prototypes"}
        assert min(*server.values(), *nodes.values()) >= 0 and sum(server.values()) <= line["seconds"] + 1e-3
        # The nodes worked while the server waited for them, one after another.
        assert sum(nodes.values()) <= server["training"] + server["evaluation"]
        assert not [name for name in line["losses"] if "seconds" in name or "process" in name]
    written = json.loads((run.folder / "profile.json").read_text())["nodes"]["data"]
    assert written == pytest.approx(sum(line["profile"]["nodes"]["data"] for line in run.rounds))
