"""What a person may write by mistake or out of malice: it resolves, or the error fits on a screen."""

import copy
import functools
import io
import random
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from refusals import refused, worded
from support import Command

from fedshift import cli
from fedshift.lab.grid.sweep import grid
from fedshift.run.launch import orphans, runner
from fedshift.site.deploy import demo as deploy_demo
from fedshift_app.config import files, resolving, validating
from fedshift_app.config.arguments import LAUNCH_KEYS, parse_arguments
from fedshift_app.run import resuming
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.limits import as_found
from fedshift_core.paths import user_path
from fedshift_core.yaml_files import parse

MARKS = (": ", "{", ", ", "\n")
PARTS, CASES = 8, 250  # seeds, and cases of each
MOST_LINE = 300

#: Aliases of aliases: few characters, more values than fit into memory.
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)
)
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
    BOMB,
)  # fmt: skip


OTHERS = (
    "model.per_node modules modules.name modules.f2dc.tau method.tau method.tta method.sigma adapt.lr method.x "
    "a.b.c.d.e.f . train."
)


def words() -> list[str]:
    """Return every key that there is, dotted ones too."""
    collected = [*resolving.FLAT_KEYS, *LAUNCH_KEYS, *OTHERS.split()]
    for name, section in resolving.resolve({}).model_dump(mode="json").items():
        collected += [f"{name}.{key}" for key in section] if isinstance(section, dict) else [name]
    return collected


#: Values of any kind, as a YAML file may hold them.
VALUES: list[Any] = yaml.safe_load(
    '[null, true, -5, 0.5, 1.0e+40, .nan, "", x, "a\\0b", "\\e[31m", ~nouser, [[x]], {name: x, 1: 2}, '
    f'{{tau: [null]}}, {{null: {{"": true}}}}, 1{"0" * 40}, {"x" * 400}]'
)
#: Keys in the place of others.
KEYS = (1, None, True, 2.5, "x" * 300, "a\0b", "\x1b[2J", "name", "\U0001f600")


def places(content: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return where all values of a file are."""
    result = [above] if above else []
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return result + [place for key, value in items for place in places(value, (*above, key))]


def mutated(rng: random.Random, content: dict[str, Any]) -> dict[str, Any]:
    """Put something else in the place of a value or a key, take one away, or wrap one up."""
    *above, key = rng.choice(places(content))
    inner: Any = functools.reduce(lambda of, part: of[part], above, content)
    act = rng.randrange(4)
    if act == 0:
        inner[key] = copy.deepcopy(rng.choice(VALUES))
    elif act == 1 and isinstance(inner, dict):
        inner[rng.choice(KEYS)] = inner.pop(key)
    elif act == 2:
        del inner[key]
    else:
        for _ in range(rng.choice([1, 3, 30])):
            inner[key] = rng.choice([[inner[key]], {"name": inner[key]}])
    return content or {"rounds": 1}


def spoilt(rng: random.Random, text: str) -> bytes:
    """Return a file's text with something hostile in it."""
    data, hostile, (before, mark, after) = text.encode(), rng.choice(HOSTILE), text.partition(rng.choice(MARKS))
    start, end = sorted(rng.choices(range(len(data)), k=2))
    lines = text.splitlines()
    lines[rng.randrange(len(lines))] = hostile
    acts = [
        data[:start],
        rng.randbytes(rng.randrange(1, 400)),
        data[:start] + rng.randbytes(min(end - start, 5)) + data[end:],
        *("\n".join(lines), f"{before}{mark}{hostile}\n{after}", f"{text}\n{hostile}: {rng.choice(HOSTILE)}\n"),
    ]
    act = rng.choice(acts)
    return act.encode(errors="surrogatepass") if isinstance(act, str) else act


class Case(NamedTuple):
    """What is tried.

    Attributes:
        shown: It, for a person.
        arguments: Those of `fedshift run`.
        flat: Keys as `flwr run` would give them to a ServerApp, which come over those of the arguments.
    """

    shown: str
    arguments: list[str]
    flat: dict[str, Any]


def case(rng: random.Random, folder: Path, keys: list[str]) -> Case:
    """Return a case: a spoilt experiment file, spoilt arguments, or both."""
    arguments, shown, flat = list[str](), "", dict[str, Any]()
    name = rng.choice(files.names("experiments"))
    text = (files.CONF / "experiments" / f"{name}.yaml").read_text()
    if rng.random() < 0.6:
        content = mutated(rng, parse(text))
        whole = yaml.safe_dump(content if rng.random() < 0.8 else {"resolved": content}).encode()
        data = rng.choice([whole, spoilt(rng, text)])
        (folder / "mine.yaml").write_bytes(data)
        arguments, shown = [str(folder / "mine.yaml")], f"{name}, spoilt: {data[:2000]!r}"
    elif rng.random() < 0.5:
        arguments = [rng.choice([name, *HOSTILE])]
    for _ in range(rng.randrange(not arguments, 4)):
        key = rng.choice(keys if rng.random() < 0.9 else HOSTILE)
        arguments.append(f"{key}={rng.choice(HOSTILE)}")
    if rng.random() < 0.1:
        flat = {rng.choice([*resolving.FLAT_KEYS, "x"]): rng.choice([*HOSTILE, *VALUES])}
    return Case(shown, arguments, flat)


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
        runner.resources(config, nodes, launch)
    except FedShiftError as error:
        return shown_for(error)
    return ""


def shown_for(error: FedShiftError) -> str:
    """Return what the command shows of a mistake."""
    with redirect_stderr(io.StringIO()) as err, pytest.raises(SystemExit) as stopped:
        cli.fail(error)
    assert stopped.value.code == 1
    return err.getvalue()


def check_message(message: str) -> None:
    """Check that a message is a few lines that do nothing to a screen and fit on it, but for a remedy's path."""
    lines = message.rstrip("\n").split("\n")
    assert message.startswith("error: "), message[:MOST_LINE]
    assert len(lines) <= 30
    assert all(line.isprintable() for line in lines), message[: 2 * MOST_LINE]
    assert all(len(line) <= MOST_LINE or "../" * 90 in line for line in lines), message[: 2 * MOST_LINE]


@pytest.mark.parametrize("part", [pytest.param(i, marks=[] if i == 0 else pytest.mark.long) for i in range(PARTS)])
def test_whatever_is_written_resolves_or_is_reported(part: int, here: Path) -> None:
    rng, keys, refused = random.Random(part), words(), 0
    for number in range(CASES):
        given = case(rng, here, keys)
        try:
            if message := tried(given):
                check_message(message)
        except BaseException as error:
            pytest.fail(f"seed {part}, case {number}: {type(error).__name__}: {str(error)[:500]}\n{str(given)[:5000]}")
        refused += bool(message)
    assert CASES / 2 < refused < CASES  # both ends are reached


# --- each hole by its name --------------------------------------------------------------------------------


def refusal(*arguments: str, **flat: Any) -> str:
    """Return with which line `fedshift run` refuses its arguments."""
    message = tried(Case("", list(arguments), flat))
    check_message(message)
    return message


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        "a: &a [*a]",
        "a: &a '" + "x" * 9000 + "'\nb: [" + "*a, " * 100 + "]",
        "train: " + "[" * 30 + "]" * 30,
        "train: " + "[" * 5000,
        "rounds: " + "9" * 5000,
        "rounds: 0x" + "f" * 90,
        "rounds: 0x_",
        "rounds: 2024-01-01",
        "2024-01-01: 3",
        "1: 3",
        "off: 3",
        "? [a, b]\n: 3",
        '"a\\0b": 3',
        'a: "\\0"',
        'a: "\\uD800"',
        '"\\e[2J": 3',
        "a: !!binary aGVsbG8=",
        "a: !!set {x}",
        "a: !!python/object/apply:os.system [true]",
        "a" * 300 + ": 3",
        "#" * 300_000,
        "a: [1, {b",
        "\ta: 1",
        b"\xff\xfe\x00",
        "rounds: 1\nrounds: 2",
    ],
    ids=lambda text: ascii(text[:20]),
)
def test_yaml_that_no_key_takes(text: str | bytes, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    message = refusal(str(file))  # a path as long as this folder's shortens what else it shows
    assert "mine.yaml" in message and "YAML" in message


def test_a_file_that_is_no_mapping(tmp_path: Path) -> None:
    for text in ("- 1\n- 2", ""):
        (tmp_path / "mine.yaml").write_text(text)
        worded(refusal(str(tmp_path / "mine.yaml")))


def test_values_of_the_command_line_are_read_the_same_way() -> None:
    for value in ("2024-01-01", "{1: 2}", "[" * 5000, "9" * 5000, "0x_", '"\\0"', "&a [*a]", "!!set {x}", BOMB):
        worded(refusal(f"train.lr={value}"), "set", "train.lr")


def test_yaml_that_is_taken() -> None:
    assert parse("a: &a [1, 2]\nb: [*a, *a]") == {"a": [1, 2], "b": [[1, 2], [1, 2]]}
    assert parse("off: 1\n2: 3", scalar_keys=True) == {False: 1, 2: 3}
    assert parse("{'a:b': '', 'c:d': null, e: }") == {"a:b": "", "c:d": None, "e": None}


@pytest.mark.parametrize("path", ["~nouser/images", "a\0b", "x" * 300, "/".join(["z" * 200] * 30), "\ud800"])
def test_paths_that_are_none(path: str) -> None:
    for key in ("data-dir", "output-dir", "resume"):
        assert f"error: {key}: " in refusal(f"{key}={path}")
    with pytest.raises(ConfigError, match="cannot be a path"):
        user_path(path)
    assert "error: experiment: " in refusal(f"{path}.yaml")


def test_a_loop_of_links_and_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with refused(ConfigError, "loop"):
        user_path(tmp_path / "loop" / "x")
    assert user_path("x", start=tmp_path) == (tmp_path / "x").resolve()


def test_a_message_keeps_its_key_and_what_is_allowed() -> None:
    worded(refusal(f"model.name={'x' * 100_000}"), "model 'xxx", "resnet18")
    worded(refusal(f"{'k' * 100_000}=1"), "key 'kkk", "train.lr")
    assert str(FedShiftError("a" * 1000 + "\x1b[2J\n" + "b" * 1000)).count("\n") == 1
    assert all(len(line) < MOST_LINE for line in str(FedShiftError("\n".join(["a" * 1000] * 1000))).splitlines())
    assert as_found(10**6000) == "a whole number of 19932 bits"
    assert len(as_found([["x" * 1000] * 1000] * 1000)) <= 100


@pytest.mark.parametrize(
    "layers", [5, [], {"method": {"name": ["x"]}}, {"plugins": 5}, {"plugins": {"a": 1}}, {"modules": 5}, {1: 2}]
)
def test_a_configuration_from_elsewhere(layers: Any) -> None:
    complete = resolving.resolve({}).model_dump(mode="json")
    with pytest.raises(ConfigError) as caught:
        validating.validate(complete | layers if isinstance(layers, dict) else layers)
    check_message(shown_for(caught.value))


def test_what_a_server_sends_may_be_no_configuration() -> None:
    for text in ("", "{", "[1]", "9" * 5000, "[" * 100_000, '{"method": ' + "[" * 500 + "]" * 500 + "}"):
        with pytest.raises(ConfigError):
            validating.from_json(text)


# --- the other commands -----------------------------------------------------------------------------------


def test_a_grid_has_an_end() -> None:
    many = ",".join(map(str, range(200)))
    with refused(ConfigError, 10_000, 40_000):
        grid.read([f"seed={many}", f"method.tau={many}"])
    with refused(ConfigError, "jobs"):
        grid.read(["jobs=" + "9" * 30, "engine=inline"])
    assert len(grid.split("seed", ",".join(map(str, range(60_000))))) == 60_000


@pytest.mark.parametrize(
    "argument", ["resume=x", "engine=inline", "nodes=2", "actors=1", "report=false", "gpus-per-client=1"]
)
def test_a_demo_refuses_what_it_cannot_hold_to(argument: str) -> None:
    with refused(ConfigError, argument.partition("=")[0], "deploy-demo"):
        deploy_demo.read([argument])


@pytest.mark.parametrize(
    "typed",
    [
        "report ~nouser/run", "compare " + "x" * 300, "status output-dir=~nouser", "export handwritten -o " + "x" * 300,
        "prepare " + "x" * 5000, "prepare handwritten dataset.name=digits", "prepare handwritten data-dir=~nouser",
        "preview handwritten -o ~nouser/x.png", "preview handwritten --domains \x1b[2J", "sweep seed=" + "9" * 5000,
        "sweep retries=x", "credentials server " + "x" * 300 + " --host localhost", "superlink --credentials ~nouser/x",
        "deploy-demo experiment=nonesuch",
    ],
    ids=lambda typed: ascii(typed[:40]),
)  # fmt: skip
def test_no_command_answers_a_mistake_with_a_traceback(
    typed: str, here: Path, monkeypatch: pytest.MonkeyPatch, fedshift: Command
) -> None:
    monkeypatch.setattr(orphans, "leftovers", list)  # `status` names what tests next to this one left
    code, out, err = fedshift(*typed.split())
    assert (code, out) == (1, "")
    check_message(err)
    assert list(here.iterdir()) == []
