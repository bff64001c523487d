"""Tables as data frames, and files. pandas is imported where a frame is made: it takes 0.2 to 0.4 s."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedshift_core.errors import ConfigError
from fedshift_core.limits import shown
from fedshift_core.paths import user_path

if TYPE_CHECKING:
    import pandas as pd

#: What a round has one number of, in the columns of a frame, by their keys in ``metrics.jsonl``.
_OF_A_ROUND = ("seconds", "bytes_down", "bytes_up")


def frame(rows: Iterable[Mapping[str, Any]]) -> "pd.DataFrame":
    """Return rows, values by column, as a data frame."""
    import pandas as pd

    return pd.DataFrame(list(rows))


def metrics(lines: Iterable[Mapping[str, Any]]) -> "pd.DataFrame":
    """Return the rounds of a run as a data frame with one row a round and domain.

    A column ``loss`` and what else a round has one number of stand in each of its rows; further scores of a domain
    (``others`` of ``metrics.jsonl``) have columns of their own. Rounds that were not scored have one row without a
    domain.

    Args:
        lines: The lines of ``metrics.jsonl``.
    """
    return frame(row for line in lines for row in _rows(line))


def _rows(line: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    accuracy, test_loss = line.get("accuracy") or {}, line.get("test_loss") or {}
    of_round = {"loss": (line.get("losses") or {}).get("loss")} | {key: line.get(key) for key in _OF_A_ROUND}
    others = line.get("others") or {}
    for domain in accuracy or (None,):
        scores = {name: by_domain.get(domain) for name, by_domain in others.items()}
        yield {
            "round": line["round"],
            "domain": domain,
            "accuracy": accuracy.get(domain),
            "test_loss": test_loss.get(domain),
            **scores,
            **of_round,
        }


def written(path: str | os.PathLike[str], content: Callable[[Path], str]) -> Path:
    """Write a file and return it.

    Args:
        path: The file.
        content: Returns its text, given the file.

    Raises:
        ConfigError: If it cannot be written.
    """
    file = user_path(path)
    try:
        file.write_text(content(file), encoding="utf-8", errors="replace")  # a folder's name may be no UTF-8
    except OSError as error:
        raise ConfigError(f"cannot write {shown(file)}: {error.strerror}") from None
    return file
