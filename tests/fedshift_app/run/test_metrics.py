"""``fedshift status --metrics`` and ``tracking=otlp``: both say of a run what its ``metrics.jsonl`` says."""

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from refusals import refused
from support import InlineRun, invoked
from traffic import changing, lost

from fedshift.run.launch import watching
from fedshift_app.run import metrics
from fedshift_app.run.metrics import Sample
from fedshift_core.errors import ConfigError

SHORT = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.05"
LABEL = r'\w+="(?:[^"\\\n]|\\["\\n])*"'
LINE = re.compile(rf"(\w+)(?:\{{({LABEL}(?:,{LABEL})*)\}})? (-?[\d.e+]+)")
CHANGING = {"fedshift_folder_bytes", "fedshift_free_bytes"}


def parsed(text: str) -> dict[tuple[str, str], float]:
    """Return the numbers of Prometheus' text form by name and labels; each name has its help and type before it."""
    numbers, about = {}, dict[str, set[str]]()
    for line in text.splitlines():
        if line.startswith("# "):
            about.setdefault(line.split()[2], set()).add(line.split()[1])
            continue
        found = LINE.fullmatch(line)
        assert found is not None and about[found[1]] == {"HELP", "TYPE"}, line
        numbers[found[1], found[2] or ""] = float(found[3])
    return numbers


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Collect what is sent to a collector on loopback."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="fedshift[otlp] is not installed")
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    received: list[Any] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append((self.path, ExportMetricsServiceRequest.FromString(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield received
        server.shutdown()


def sent(request: Any) -> dict[tuple[str, str], float]:
    """Return the numbers of an export, as Prometheus names them."""
    (resource,) = request.resource_metrics
    return {
        (metric.name.replace(".", "_"), ",".join(f'{a.key}="{a.value.string_value}"' for a in point.attributes)): (
            point.as_int or point.as_double
        )
        for metric in resource.scope_metrics[0].metrics
        for point in metric.gauge.data_points
    }


def test_both_say_what_the_rounds_say(run_inline: InlineRun, collector: list[Any]) -> None:
    run = run_inline(rounds=2, tracking="otlp", set=SHORT, grid=changing(lost, "train", [1], [2]))
    ended = invoked("status", run.folder, "--metrics")
    assert ended.exit_code == 0, ended.output  # also of a degraded run: a cron line goes on
    numbers, (first, last) = parsed(ended.output), run.rounds
    assert numbers["fedshift_round", ""] == numbers["fedshift_rounds", ""] == 2
    assert numbers["fedshift_lost_nodes", ""] == 1 and last["lost"] == [1]
    assert numbers["fedshift_bytes", 'direction="up"'] == first["bytes_up"] + last["bytes_up"] > 0
    assert numbers["fedshift_seconds", ""] == pytest.approx(first["seconds"] + last["seconds"])
    assert numbers["fedshift_accuracy", 'domain="scan"'] == pytest.approx(last["accuracy"]["scan"])
    assert numbers["fedshift_nodes", 'state="connected"'] == len(run.results["nodes"])
    files = [path for path in run.folder.rglob("*") if path.is_file()]
    assert numbers["fedshift_folder_bytes", ""] == sum(path.stat().st_size for path in files)
    assert any(name == "fedshift_run" and 'state="degraded"' in labels for name, labels in numbers)

    path, request = collector[-1]
    rounds = {key: value for key, value in numbers.items() if key[0].removeprefix("fedshift_") in metrics.ROUNDS}
    assert path == "/v1/metrics" and set(sent(request)) == set(rounds)
    assert all(sent(request)[key] == pytest.approx(rounds[key]) for key in rounds if key[0] not in CHANGING)


def test_any_name_and_any_lack_is_written_as_prometheus_reads_it(tmp_path: Path) -> None:
    name = 'a "b" \\ c\nd'
    line = {"round": 1, "accuracy": {name: 40.5, "none": None}, "privacy": {"epsilon": {"0": 1.5}, "delta": 1e-5}}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    numbers = parsed(metrics.text(metrics.of_rounds(tmp_path), metrics.ROUNDS))
    assert numbers["fedshift_accuracy", r'domain="a \"b\" \\ c\nd"'] == 40.5
    assert ("fedshift_accuracy", 'domain="none"') not in numbers
    assert numbers["fedshift_epsilon", 'node="0"'] == 1.5
    assert parsed(metrics.text([Sample("round", None)], metrics.ROUNDS)) == {}
    with refused(ConfigError, "--metrics", "--watch"):
        watching.show([], as_json=False, watch=True, site="", as_metrics=True)
