"""Keys of a run as the words of a command: ``handwritten method=moon rounds=2 train.lr=1``."""

import shlex
from collections.abc import Callable
from typing import Any

from support import InlineRun, Run

from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import RunConfig

#: What a run is given by itself; all other keys are those of ``set``.
OWN: dict[str, Callable[[str], Any]] = {"method": str, "dataset": str, "rounds": int, "seed": int, "nodes": int}


def keys(words: str) -> dict[str, Any]:
    """Return the keys that words name."""
    flat: dict[str, Any] = {}
    dotted = []
    for word in shlex.split(words):
        key, equals, value = word.partition("=")
        if not equals:
            flat["experiment"] = word
        elif key in OWN:
            flat[key] = OWN[key](value)
        else:
            dotted.append(shlex.quote(word))
    return flat | ({"set": " ".join(dotted)} if dotted else {})


def config(words: str = "", **more: Any) -> RunConfig:
    """Return the configuration that words make."""
    return resolve(keys(words) | more)


def by_words(run: InlineRun) -> InlineRun:
    """Return what runs an experiment, or the words of a command."""

    def of_words(words: str = "handwritten", **more: Any) -> Run:
        if "=" not in words or "/" in words.split("=")[0]:  # an experiment, or its file
            return run(**({"experiment": words} | more))
        return run(**keys(words) | more)

    return of_words
