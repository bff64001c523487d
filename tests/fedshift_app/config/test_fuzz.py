"""What a person may write by mistake or out of malice: it resolves, or the error fits on a screen."""

import io
import random
import shlex
import sys
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedshift import cli
from fedshift.lab.grid.sweep import grid
from fedshift.run.launch import orphans, runner
from fedshift.site.deploy import demo as deploy_demo
from fedshift_app.config import files, resolving, validating
from fedshift_app.config.arguments import LAUNCH_KEYS, parse_arguments
from fedshift_app.run import resuming
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.limits import LARGEST_SEED, MOST_NODES, MOST_ROUNDS, as_found
from fedshift_core.paths import user_path
from fedshift_core.yaml_files import parse

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
    collected = [*resolving.FLAT_KEYS, *LAUNCH_KEYS, "model-per-node", "modules", "modules.name", "modules.f2dc.tau"]
    for name, section in resolving.resolve({}).model_dump(mode="json").items():
        collected += [f"{name}.{key}" for key in section] if isinstance(section, dict) else [name]
    return [
        *collected,
        "method.tau",
        "method.tta",
        "method.sigma",
        "adapt.lr",
        "method.x",
        "a.b.c.d.e.f",
        ".",
        "train.",
    ]


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
    result = [above] if above else []
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return result + [place for key, value in items for place in places(value, (*above, key))]


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
        shown: It, for a person.
        arguments: Those of `fedshift run`.
        flat: Keys as `flwr run` would give them to a ServerApp, which come over those of the arguments.
    """

    shown: str
    arguments: list[str]
    flat: dict[str, Any]


def case(rng: random.Random, folder: Path, keys: list[str]) -> Case:
    """Return a case: a spoilt experiment file, spoilt arguments, or both."""
    arguments: list[str] = []
    result = ""
    name = rng.choice(files.names("experiments"))
    text = (files.CONF / "experiments" / f"{name}.yaml").read_text()
    if rng.random() < 0.6:
        if rng.random() < 0.5:
            content = mutated(rng, parse(text))
            data = yaml.safe_dump(content if rng.random() < 0.8 else {"resolved": content}).encode()
        else:
            data = spoilt(rng, text)
        path = folder / "mine.yaml"
        path.write_bytes(data)
        arguments, result = [str(path)], f"{name}, spoilt: {data[:2000]!r}"
    elif rng.random() < 0.5:
        arguments = [rng.choice([name, *HOSTILE])]
    count = rng.randrange(0 if arguments else 1, 4)
    for _ in range(count):
        key = rng.choice(keys if rng.random() < 0.9 else HOSTILE)
        arguments.append(f"{key}={rng.choice(HOSTILE)}")
    flat = {}
    if rng.random() < 0.1:
        flat[rng.choice([*resolving.FLAT_KEYS, "x"])] = rng.choice([rng.choice(HOSTILE), values_of(rng)])
    return Case(result, arguments, flat)


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


def check_message(message: str) -> None:
    """Check that a message is a few lines that do nothing to a screen and fit on it, but for a remedy's path."""
    lines = message.rstrip("\n").split("\n")
    assert message.startswith("error: "), message[:MOST_LINE]
    assert len(lines) <= 30
    assert all(line.isprintable() for line in lines), message[: 2 * MOST_LINE]
    assert all(len(line) <= MOST_LINE or "../" * 90 in line for line in lines), message[: 2 * MOST_LINE]


@pytest.mark.parametrize("part", [pytest.param(i, marks=[] if i == 0 else pytest.mark.long) for i in range(PARTS)])
def test_whatever_is_written_resolves_or_is_reported(
    part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rng, keys = random.Random(part), words()
    refused = 0
    for number in range(CASES):
        given = case(rng, tmp_path, keys)
        try:
            message = tried(given)
            if message:
                check_message(message)
        except BaseException as error:
            requested = shlex.join(given.arguments)[:3000]
            pytest.fail(
                f"seed {part}, case {number}: {type(error).__name__}: {str(error)[:500]}\n{requested!r}\n"
                f"{given.flat!r:.500}\n{given.shown}"
            )
        refused += bool(message)
    assert CASES / 2 < refused < CASES  # both ends are reached


# --- each hole by its name --------------------------------------------------------------------------------

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)
)


def refusal(*arguments: str, **flat: Any) -> str:
    """Return with which line `fedshift run` refuses its arguments."""
    message = tried(Case("", list(arguments), flat))
    check_message(message)
    return message


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BOMB, "it has more than 20000 values, including those that aliases repeat"),
        ("a: &a [*a]", "lists and mappings are nested more than 20 deep"),
        ("a: &a '" + "x" * 9000 + "'\nb: [" + "*a, " * 100 + "]", "with expanded aliases it has more than"),
        ("train: " + "[" * 30 + "]" * 30, "lists and mappings are nested more than 20 deep"),
        ("train: " + "[" * 5000, "maximum nesting depth"),
        ("rounds: " + "9" * 5000, "whole numbers go up to 9223372036854775807"),
        ("rounds: 0x" + "f" * 90, "whole numbers go up to 9223372036854775807"),
        ("rounds: 0x_", "'0x_' cannot be read"),
        ("rounds: 2024-01-01", "'2024-01-01' is a date, which no key accepts"),
        ("2024-01-01: 3", "'2024-01-01' is a date"),
        ("1: 3", "line 1, column 1: 1 is not a key; a key is a word"),
        ("off: 3", "False is not a key"),
        ("null: 3", "None is not a key"),
        ("? [a, b]\n: 3", "a list or mapping is not a key"),
        ("? {a: b}\n: 3", "a list or mapping is not a key"),
        ('"a\\0b": 3', "contains NUL"),
        ('a: "\\0"', "contains NUL"),
        ('a: "\\uD800"', "invalid Unicode character"),
        ('"\\e[2J": 3', "without control characters"),
        ("a: !!binary aGVsbG8=", "is binary data"),
        ("a: !!set {x}", "a set is not allowed as a value"),
        ("a: !!python/object/apply:os.system [true]", "python/object/apply:os.system"),
        ("a" * 300 + ": 3", "characters without control characters"),
        ("#" * 300_000, "it has more than 262144 bytes"),
        ("a: [1, {b", "line 2, column 1: while parsing a flow mapping"),
        ("rounds: 1\nrounds: 2", "the key 'rounds' comes twice, again in line 2"),
        ("a: {scan:0.1, street: 2}", "'scan:0.1': a space is missing after the colon, {scan: 0.1}"),
    ],
)
def test_yaml_that_no_key_takes(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    message = refusal(str(tmp_path / "mine.yaml"))
    assert reason in message
    assert "mine.yaml: cannot be read as YAML: " in message


def test_values_of_the_command_line_are_read_the_same_way() -> None:
    for value in ("2024-01-01", "{1: 2}", "[" * 5000, "9" * 5000, "0x_", '"\\0"', "&a [*a]", "!!set {x}"):
        assert "set: the value of train.lr, " in refusal(f"train.lr={value}")
    assert "set: the value of train.lr, " in refusal(f"train.lr={BOMB}")


def test_a_few_aliases_are_taken() -> None:
    assert parse("a: &a [1, 2]\nb: [*a, *a]") == {"a": [1, 2], "b": [[1, 2], [1, 2]]}
    assert parse("off: 1\n2: 3", scalar_keys=True) == {False: 1, 2: 3}


def test_a_value_that_is_empty_is_not_one_that_is_missing() -> None:
    assert parse("{'a:b': '', 'c:d': null, e: }") == {"a:b": "", "c:d": None, "e": None}


@pytest.mark.parametrize("key", ["data-dir", "output-dir", "resume"])
@pytest.mark.parametrize("path", ["~nouser/images", "a\0b", "x" * 300, "/".join(["z" * 200] * 30), "\ud800"])
def test_paths_that_are_none(key: str, path: str) -> None:
    assert f"error: {key}: " in refusal(f"{key}={path}")
    with pytest.raises(ConfigError, match="cannot be a path"):
        user_path(path)
    assert "error: experiment: " in refusal(f"{path}.yaml")


def test_a_loop_of_links_and_what_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ConfigError, match="loop"):
        user_path(tmp_path / "loop" / "x")
    assert user_path(tmp_path / "nothing") == (tmp_path / "nothing").resolve()
    assert user_path("x", start=tmp_path) == (tmp_path / "x").resolve()


def test_no_number_of_nodes_hangs(tmp_path: Path) -> None:
    assert f"nodes: expected a whole number from 1 to {MOST_NODES}" in refusal("nodes=" + "1" + "0" * 30)
    with pytest.raises(ConfigError, match=f"at most {MOST_NODES} nodes, found 1"):
        runner.num_nodes(resolving.resolve({}), 10**30)
    for counts in ("{random: 1" + "0" * 30 + "}", "{random: 1000000000}", "{scan: 1000000000}"):
        message = refusal(f"allocation.counts={counts}")
        assert "at most" in message or "whole numbers" in message


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        (f"rounds={MOST_ROUNDS + 1}", f"rounds: expected a whole number from 0 to {MOST_ROUNDS}"),
        ("rounds=" + "9" * 5000, "rounds: expected a whole number"),
        (f"seed={LARGEST_SEED + 1}", f"seed: expected a whole number from 0 to {LARGEST_SEED}"),
        ("actors=100000", "actors: expected a whole number from 1 to 1024"),
        ("cpus-per-client=100000", "cpus-per-client: expected a whole number from 1 to 1024"),
        ("train.epochs=1000001", "train.epochs: Input should be less than or equal to 1000000, found 1000001"),
        ("train.batch_size=1000000000", "train.batch_size"),
        ("train.threads=1000000", "train.threads"),
        ("images.eval_batch=1000000000", "images.eval_batch"),
        ("federation.node_timeout=1e12", "federation.node_timeout"),
        ("dataset.seed=9223372036854775808", "dataset.seed"),
        ("modules=[{name: f2dc, hidden: 1000000000}]", "modules.f2dc.hidden"),
        ("train.a.b.c.d.e=1", "is not a key"),
        ("method.name=[fedavg]", "unknown method"),
    ],
)
def test_numbers_have_bounds(argument: str, reason: str) -> None:
    assert reason in refusal(argument)


def test_the_largest_seed_is_taken() -> None:
    assert resolving.resolve({"seed": LARGEST_SEED}).seed == LARGEST_SEED


def test_a_list_where_a_recipe_knows_words() -> None:
    assert "method.tta: ['x']; allowed are True, False" in refusal("method=fedicon", "rounds=20", "method.tta=[x]")


def test_a_message_keeps_its_key_and_what_is_allowed() -> None:
    message = refusal(f"model.name={'x' * 100_000}")
    assert "unknown model 'xxx" in message
    assert "resnet18" in message
    message = refusal(f"{'k' * 100_000}=1")
    assert "unknown key 'kkk" in message
    assert message.rstrip().endswith("and dotted ones such as train.lr")
    assert str(FedShiftError("a" * 1000 + "\x1b[2J\n" + "b" * 1000)).count("\n") == 1
    assert all(len(line) < MOST_LINE for line in str(FedShiftError("\n".join(["a" * 1000] * 1000))).splitlines())
    assert as_found(10**6000) == "a whole number of 19932 bits"
    assert len(as_found([["x" * 1000] * 1000] * 1000)) <= 100


@pytest.mark.parametrize(
    "layers", [5, [], {"method": {"name": ["x"]}}, {"plugins": 5}, {"plugins": {"a": 1}}, {"modules": 5}, {1: 2}, {}]
)
def test_a_configuration_from_elsewhere(layers: Any) -> None:
    complete = resolving.resolve({}).model_dump(mode="json")
    given = complete | layers if isinstance(layers, dict) and layers else layers
    with pytest.raises(ConfigError) as caught:
        validating.validate(given)
    check_message(shown_for(caught.value))


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "9" * 5000, "[" * 100_000, '{"method": ' + "[" * 500 + "]" * 500 + "}"]
)
def test_what_a_server_sends_may_be_no_configuration(text: str) -> None:
    with pytest.raises(ConfigError):
        validating.from_json(text)


# --- the other commands -----------------------------------------------------------------------------------


def test_a_grid_has_an_end() -> None:
    many = ",".join(map(str, range(200)))
    with pytest.raises(ConfigError, match="a grid has at most 10000 runs, found 40000"):
        grid.read([f"seed={many}", f"method.tau={many}"])
    with pytest.raises(ConfigError, match="jobs"):
        grid.read(["jobs=" + "9" * 30, "engine=inline"])
    assert len(grid.split("seed", ",".join(map(str, range(60_000))))) == 60_000


@pytest.mark.parametrize(
    "argument",
    [
        "resume=x",
        "engine=inline",
        "nodes=2",
        "actors=1",
        "report=false",
        "gpus-per-client=1",
    ],
)
def test_a_demo_refuses_what_it_cannot_hold_to(argument: str) -> None:
    key = argument.partition("=")[0]
    with pytest.raises(
        ConfigError, match=rf"^{key}: deploy-demo starts a new run .*; it accepts experiment, method, dataset, rounds"
    ):
        deploy_demo.read([argument])


def test_a_demo_holds_to_what_it_takes() -> None:
    config, number, flat = deploy_demo.planned(deploy_demo.read([]))
    assert (config.rounds, number, flat["set"]) == (4, 4, "federation.min_nodes=4")
    assert config.experiment == "handwritten"
    requested = [
        "rounds=7",
        "method=fedprox",
        "seed=3",
        "federation.min_nodes=2",
        "dataset.domains=[scan,street,sketch]",
    ]
    config, number, flat = deploy_demo.planned(deploy_demo.read(requested))
    assert (config.rounds, config.seed, config.method["name"], number) == (7, 3, "fedprox", 3)
    submitted = resolving.resolve(flat)
    assert submitted.federation.min_nodes == 2
    assert submitted.rounds == 7
    assert deploy_demo.planned(deploy_demo.read(["allocation.counts={random: 6}"]))[1] == 6
    for requested in (["digits-small-cnn"], ["experiment=digits-small-cnn"]):  # its rounds, and its six nodes
        config, number, _ = deploy_demo.planned(deploy_demo.read([*requested, "data-dir=/images"]))
        assert (config.experiment, config.rounds, number) == ("digits-small-cnn", 40, 6)
    with pytest.raises(ConfigError, match="at most 16 SuperNodes, found 17"):
        deploy_demo.planned(deploy_demo.read(["allocation.counts={random: 17}"]))


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "~nouser/run"],
        ["compare", "x" * 300],
        ["status", "output-dir=~nouser"],
        ["export", "handwritten", "-o", "x" * 300],
        ["prepare", "x" * 5000],
        ["prepare", "handwritten", "dataset.name=digits"],
        ["prepare", "handwritten", "data-dir=~nouser"],
        ["preview", "handwritten", "-o", "~nouser/x.png"],
        ["preview", "handwritten", "--domains", "\x1b[2J"],
        ["sweep", "seed=" + "9" * 5000],
        ["sweep", "retries=x"],
        ["credentials", "server", "x" * 300, "--host", "localhost"],
        ["superlink", "--credentials", "~nouser/x"],
        ["deploy-demo", "experiment=nonesuch"],
    ],
    ids=lambda arguments: " ".join(arguments)[:40].encode("unicode_escape").decode(),
)
def test_no_command_answers_a_mistake_with_a_traceback(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fedshift", *arguments])
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    monkeypatch.setattr(orphans, "leftovers", list)  # `status` names what tests next to this one left
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 1
    out, err = capsys.readouterr()
    assert out == ""
    check_message(err)
    assert list(tmp_path.iterdir()) == []
