"""What several tests import: the folder of a run, and a grid to listen on."""

import importlib.util
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from flwr.app import Message

from fedshift_app.flower import inline

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Run:
    """A finished run's folder."""

    folder: Path

    @property
    def results(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.folder / "results.json").read_text())
        return content

    @property
    def rounds(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]


class ListeningGrid(inline.InlineGrid):
    """An inline grid whose traffic a test may see and change."""

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
        asked = list(messages)
        replies = super().send_and_receive(asked, timeout=timeout)
        return [reply for pair in zip(asked, replies, strict=True) if (reply := self.pass_on(*pair)) is not None]

    def pass_on(self, asked: Message, reply: Message) -> Message | None:
        """Return the reply that the server gets; None to lose it."""
        return reply


InlineRun = Callable[..., Run]


def load_benchmark(name: str) -> ModuleType:
    """Return a script of ``benchmarks/``, which is no package, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
