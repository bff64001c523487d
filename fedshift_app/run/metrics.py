"""Numbers of a run for monitoring, from its folder: Prometheus' text form, and what ``tracking=otlp`` sends.

Imports neither Flower nor torch.
"""

import shutil
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from fedshift_app.features.privacy.show import KEY as PRIVACY
from fedshift_app.run.files import METRICS_FILE, full_lines
from fedshift_core.disk_use import bytes_in

PREFIX = "fedshift"
#: What :func:`of_rounds` gives, by name.
ROUNDS = {
    "round": "last full round",
    "seconds": "seconds of all full rounds",
    "bytes": "array bytes of training, by direction",
    "lost_nodes": "parts of nodes that were lost, over all rounds",
    "accuracy": "accuracy, or the score of another task, in percent of the last scored round, by domain",
    "epsilon": "epsilon that a node has spent by dp-sgd",
    "folder_bytes": "bytes of the run folder",
    "free_bytes": "free bytes on the disk of the run folder",
}
_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class Sample(NamedTuple):
    """A number with its name and labels."""

    name: str
    value: float | None
    labels: Mapping[str, str] = {}


def of_rounds(folder: Path) -> list[Sample]:
    """Return the numbers of the full rounds of a run folder, and of its disk."""
    lines = full_lines(folder / METRICS_FILE)
    scored: dict[str, float | None] = next((line["accuracy"] for line in reversed(lines) if line.get("accuracy")), {})
    spent: dict[str, float] = next((line[PRIVACY]["epsilon"] for line in reversed(lines) if PRIVACY in line), {})
    return [
        Sample("round", lines[-1]["round"] if lines else 0),
        Sample("seconds", sum(line.get("seconds", 0) for line in lines)),
        *(
            Sample("bytes", sum(line.get(f"bytes_{way}", 0) for line in lines), {"direction": way})
            for way in ("up", "down")
        ),
        Sample("lost_nodes", sum(len(line.get("lost", ())) for line in lines)),
        *(Sample("accuracy", value, {"domain": domain}) for domain, value in scored.items()),
        *(Sample("epsilon", value, {"node": node}) for node, value in spent.items()),
        Sample("folder_bytes", bytes_in(folder)),
        Sample("free_bytes", shutil.disk_usage(folder).free),
    ]


def text(samples: Iterable[Sample], about: Mapping[str, str]) -> str:
    """Return samples in Prometheus' text form, version 0.0.4, without those that have no value.

    Args:
        samples: Those of one name stand together.
        about: What each name means.
    """
    lines = list[str]()
    for name, group in groupby((sample for sample in samples if sample.value is not None), key=lambda each: each.name):
        lines += [f"# HELP {PREFIX}_{name} {about[name]}", f"# TYPE {PREFIX}_{name} gauge"]
        for _, value, labels in group:
            given = ",".join(f'{key}="{label.translate(_ESCAPED)}"' for key, label in labels.items())
            lines.append(f"{PREFIX}_{name}{{{given}}} {value}" if given else f"{PREFIX}_{name} {value}")
    return "\n".join(lines)
