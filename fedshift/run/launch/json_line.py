"""``fedshift run --json``: the outcome of a run as one JSON object, the last line of standard output.

All other lines go to standard error. The object is there also where the run fails or is stopped; only a wrong call,
which is refused before anything is read, has none.
"""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedshift_app.run import exit_codes, files, status
from fedshift_app.run.summary import finite
from fedshift_core.accuracies import average
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.losses import Losses


class Outcome:
    """What a run has come to.

    Attributes:
        folder: The run folder; None before there is one.
    """

    def __init__(self) -> None:
        self.folder: Path | None = None
        self._started = time.monotonic()

    def begun(self, folder: Path) -> None:
        """Note the run folder."""
        self.folder = folder

    def content(self, code: int, error: str | None) -> dict[str, Any]:
        """Return the object.

        Args:
            code: The exit code.
            error: What went wrong; None for nothing.
        """
        reported: dict[str, Any] = {}
        with contextlib.suppress(ConfigError):
            reported = status.read(self.folder).model_dump() if self.folder else {}
        return {
            "folder": self.folder and str(self.folder),
            "state": reported.get("state") or (status.INTERRUPTED if code in exit_codes.STOPPED_BY else status.FAILED),
            "exit_code": code,
            "rounds": int(reported.get("full_rounds") or 0),
            "seconds": round(time.monotonic() - self._started, 3),
            "scores": self.folder and scores(self.folder),
            "error": error if error is not None or code == exit_codes.OK else reported.get("error"),
        }


def scores(folder: Path) -> dict[str, Any] | None:
    """Return the scores of a run's ``results.json`` in percent; None where there is no such file.

    ``domains`` and ``average`` are means of the last ``averaged_rounds``, as in the table, or of the rounds
    ``averaged_over``; balanced accuracy and macro-F1 are those of one round, the mean over the domains.
    """
    try:
        content = files.results(folder)
    except ConfigError:
        return None
    figures = (content.get("figures") or {}).get("domains", {})
    by_class = {
        name: average({domain: None if of is None else of[name] for domain, of in figures.items()})
        for name in ("balanced_accuracy", "macro_f1")
    }
    losses = Losses.of(content)
    lines = losses.lines()
    return {
        "domains": content["domains"],
        "average": losses.overall(content["domains"]).avg,
        "averaged_rounds": content["averaged_rounds"],
        "final": content["final"],
        **by_class,
        **({"losses": lines} if lines else {}),
        **{key: content[key] for key in (files.AVERAGED_OVER,) if key in content},
    }


@contextlib.contextmanager
def printed(*, on: bool) -> Iterator[Outcome]:
    """Yield the outcome of the run inside; print it at the end, if ``on``, and all else to standard error."""
    outcome, out = Outcome(), sys.stdout
    if not on:
        yield outcome
        return
    code, error = exit_codes.OK, None
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield outcome
    except BaseException as failure:
        code, error = exit_codes.FAILED, f"{type(failure).__name__}: {failure}"
        if isinstance(failure, FedShiftError):
            error = str(failure)
        if isinstance(failure, SystemExit):
            code = failure.code if isinstance(failure.code, int) else int(failure.code is not None)
            error = exit_codes.STOPPED_BY.get(code)
        raise
    finally:
        line = json.dumps(finite(outcome.content(code, error)), ensure_ascii=False)
        with contextlib.suppress(OSError):  # nobody reads it
            print(line, file=out, flush=True)
