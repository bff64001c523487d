"""What a person may write by mistake or out of malice: it resolves, or it is told in lines that fit on a screen."""

import io
import os
import random
import shlex
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedshift_app import cli
from fedshift_app.config import files, resolving
from fedshift_app.config.arguments import LAUNCH_KEYS, parse_arguments
from fedshift_app.launch import runner
from fedshift_app.run import resuming
from fedshift_wire.errors import ConfigError, FedShiftError

PARTS, CASES = 8, 250  # seeds, and cases of each
MOST_LINE = 300

#: Texts that take the place of a key or a value; each may be any.
HOSTILE = (
    "2024-01-01", "2024-01-01T00:00:00Z", "{? [1, 2] : 3}", "{? {a: 1} : 3}", "{1: 2}", "{null: 1}", "{true: 1}",
    "{1.5: 1}", "[" * 5000, "[" * 15 + "]" * 15, "{a: " * 400 + "1" + "}" * 400, "9" * 5000, "-" + "9" * 5000,
    "1" + "0" * 30, "0x" + "f" * 300, "0x_", "0b_", "1:30:00", ".nan", ".inf", "-.inf", "1e999", "-1", "0", "3.5",
    "true", "null", "~", '"a\\0b"', '"\\e[31mred"', '"\\uD800"', '"\\u202e"', "'line\n\n  line'", "~nouser/images",
    "~nouser/mine.yaml", "x" * 300, "/" + "y" * 300, "/".join(["z" * 200] * 30), "../" * 100, "/dev/null", "",
    "[]", "{}", "[[]]", "[{}]", "!!binary aGVsbG8=", "!!set {a}", "!!python/object/apply:os.system [true]",
    "!!int [1]", "!!float x", "&a [*a]", "*nowhere", "<<", "{<<: {a: 1}}", "=", "%", "@", "`", "|", "> x", "- a",
    "\u00e9" * 90, "\U0001f600" * 90, "\u0000", "\x1b[2J", "\ud800", "\u2028", "none", "off", "fedavg", "handwritten",
    "[scan, scan]", "{scan: 100000000}", "{random: 1000000000000000000000000000000}", "{scan: -1}", "equal", "any",
    "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n"
    for i in range(9)),
)  # fmt: skip


def words() -> list[str]:
    """Return every key that there is, dotted ones too."""
    found = [*resolving.FLAT_KEYS, *LAUNCH_KEYS, "model-per-node", "modules", "modules.name", "modules.f2dc.tau"]
    for name, section in resolving.resolve({}).model_dump(mode="json").items():
        found += [f"{name}.{key}" for key in section] if isinstance(section, dict) else [name]
    return [*found, "method.tau", "method.tta", "method.sigma", "adapt.lr", "method.x", "a.b.c.d.e.f", ".", "train."]


def values_of(rng: random.Random, depth: int = 0) -> Any:
    """Return a value of any kind, as a YAML file may hold it."""
    kind = rng.randrange(9 if depth < 3 else 7)
    if kind == 7:
        return [values_of(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 8:
        return {rng.choice(["name", "tau", "x", "", 1, None, True]): values_of(rng, depth + 1) for _ in range(3)}
    some: tuple[Any, ...] = (
        None, rng.random() < 0.5, rng.randint(-5, 5), rng.uniform(-2, 2), 10 ** rng.randint(1, 40),
        rng.choice(["", "x", "fedavg", "none", "f2dc", "a\0b", "\x1b[31m", "~nouser", "x" * 400]), float("nan"),
    )  # fmt: skip
    return some[kind]


def places(content: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return where all values of a file are."""
    found = [above] if above else []
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return found + [place for key, value in items for place in places(value, (*above, key))]


def mutated(rng: random.Random, content: dict[str, Any]) -> dict[str, Any]:
    """Put something else in the place of a value or a key, take one away, or wrap one up."""
    *above, key = rng.choice(places(content))
    inner: Any = content
    for part in above:
        inner = inner[part]
    act = rng.randrange(4)
    if act == 0:
        inner[key] = values_of(rng)
    elif act == 1 and isinstance(inner, dict):
        inner[rng.choice([1, None, True, 2.5, "x" * 300, "a\0b", "\x1b[2J", "name", "\U0001f600"])] = inner.pop(key)
    elif act == 2:
        del inner[key]
    else:
        for _ in range(rng.choice([1, 3, 30])):
            inner[key] = rng.choice([[inner[key]], {"name": inner[key]}])
    return content or {"rounds": 1}


def spoilt(rng: random.Random, text: str) -> bytes:
    """Return a file's text with something hostile in it."""
    act = rng.randrange(6)
    if act == 0:
        return text[: rng.randrange(len(text))].encode()
    if act == 1:
        return rng.randbytes(rng.randrange(1, 400))
    if act == 2:
        data = bytearray(text.encode())
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(data)
    hostile = rng.choice(HOSTILE)
    if act == 3:
        lines = text.splitlines()
        lines[rng.randrange(len(lines))] = hostile
        return "\n".join(lines).encode(errors="surrogatepass")
    before, colon, after = text.partition(rng.choice([": ", "{", ", ", "\n"]))
    if act == 4:
        return f"{before}{colon}{hostile}\n{after}".encode(errors="surrogatepass")
    return f"{text}\n{hostile}: {rng.choice(HOSTILE)}\n".encode(errors="surrogatepass")


@dataclass(frozen=True)
class Case:
    """What is tried.

    Attributes:
        told: It, for a person.
        arguments: Those of `fedshift run`.
        flat: Keys as `flwr run` would give them to a ServerApp, which come over those of the arguments.
    """

    told: str
    arguments: list[str]
    flat: dict[str, Any]


def case(rng: random.Random, folder: Path, keys: list[str]) -> Case:
    """Return a case: a spoilt experiment file, spoilt arguments, or both."""
    arguments: list[str] = []
    told = ""
    name = rng.choice(files.names("experiments"))
    text = (files.CONF / "experiments" / f"{name}.yaml").read_text()
    if rng.random() < 0.6:
        if rng.random() < 0.5:
            content = mutated(rng, yaml.safe_load(text))
            data = yaml.safe_dump(content if rng.random() < 0.8 else {"resolved": content}).encode()
        else:
            data = spoilt(rng, text)
        path = folder / "mine.yaml"
        path.write_bytes(data)
        arguments, told = [str(path)], f"{name}, spoilt: {data[:2000]!r}"
    elif rng.random() < 0.5:
        arguments = [rng.choice([name, *HOSTILE])]
    count = rng.randrange(0 if arguments else 1, 4)
    for _ in range(count):
        key = rng.choice(keys if rng.random() < 0.9 else HOSTILE)
        arguments.append(f"{key}={rng.choice(HOSTILE)}")
    flat = {}
    if rng.random() < 0.1:
        flat[rng.choice([*resolving.FLAT_KEYS, "x"])] = rng.choice([rng.choice(HOSTILE), values_of(rng)])
    return Case(told, arguments, flat)


def tried(given: Case) -> str:
    """Do what `fedshift run` does before anything starts; return what it refuses with, empty where it does not."""
    try:
        try:
            flat, launch = parse_arguments(given.arguments)
        except FedShiftError:
            if not given.flat:
                raise
            flat, launch = {}, {}
        config, _ = resuming.resolve(flat | given.flat, hold=False)
        nodes = runner.num_nodes(config, launch.get("nodes"))
        runner.resources(config, nodes, *(launch.get(key) for key in ("cpus-per-client", "gpus-per-client", "actors")))
    except FedShiftError as error:
        return shown_for(error)
    return ""


def shown_for(error: FedShiftError) -> str:
    """Return what the command shows of a mistake."""
    with redirect_stderr(io.StringIO()) as err, pytest.raises(SystemExit) as stopped:
        cli.fail(error)
    assert stopped.value.code == 1
    return err.getvalue()


def check_told(message: str) -> None:
    """Check that a message is a few lines that fit on a screen and do nothing to it."""
    lines = message.rstrip("\n").split("\n")
    assert message.startswith("error: "), message[:MOST_LINE]
    assert len(lines) <= 30
    assert all(len(line) <= MOST_LINE and line.isprintable() for line in lines), message[: 2 * MOST_LINE]


@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_is_written_resolves_or_is_told(part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng, keys = random.Random(part), words()
    refused = 0
    for number in range(CASES):
        given = case(rng, tmp_path, keys)
        try:
            message = tried(given)
            if message:
                check_told(message)
        except BaseException as error:
            shown = shlex.join(given.arguments)[:3000]
            pytest.fail(
                f"seed {part}, case {number}: {type(error).__name__}: {str(error)[:500]}\n{shown!r}\n{given.flat!r:.500}\n"
                f"{given.told}"
            )
        refused += bool(message)
    assert CASES / 2 < refused < CASES  # both ends are reached
