"""Keys are read, listed and refused without torch, whose import takes seconds."""

import subprocess
import sys

import pytest

from fedshift.run.launch import running
from fedshift_clients.adapt.catalog import ADAPTATIONS
from fedshift_clients.modules.catalog import MODULES
from fedshift_core.errors import ConfigError
from fedshift_core.registry import imported, params_of

#: Refuses what its arguments say, and tells whether torch was imported for it.
REFUSED = """
import sys
from fedshift_app.config import resolving
from fedshift_app.config.arguments import parse_arguments
from fedshift_core.errors import ConfigError
for line in sys.stdin.read().splitlines():
    try:
        resolving.check_keys(parse_arguments(line.split())[0])
    except ConfigError as error:
        print(error)
    else:
        print("allowed")
print([name for name in sys.modules if name in ("torch", "scipy", "ray")])
"""
WRONG = {
    "handwritten method=fpl": "allowed",
    "handwritten train.lrr=1": "unknown key train.lrr",
    "handwritten method=fpl method.tauu=1": "unknown key method.tauu",
    "handwritten method=fpl method.tau=-1": "method.tau: Input should be greater than 0, found -1",
    "handwritten method=f2dc method.sigmaa=1": "unknown key method.sigmaa",
    "handwritten modules=[mixstyle] modules.mixstyle.pp=1": "unknown key modules.mixstyle.pp",
    "handwritten adapt.name=finetune adapt.lrr=1": "unknown key adapt.lrr",
    "handwritten method=fplx": "unknown method 'fplx'",
}


def run(program: str, given: str = "") -> list[str]:
    """Return the lines that a program prints in a process of its own."""
    done = subprocess.run([sys.executable, "-c", program], input=given, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_a_wrong_key_is_refused_before_torch_is_imported() -> None:
    *lines, loaded = run(REFUSED, "\n".join(WRONG))
    assert loaded == "[]"
    assert len(lines) == len(WRONG)
    for line, expected in zip(lines, WRONG.values(), strict=True):
        assert line.startswith(expected)


def test_all_parameters_are_listed_without_torch() -> None:
    program = (
        "import sys; from fedshift_app.config import registry as r; "
        "from fedshift_clients.modules.catalog import MODULES; "
        "from fedshift_clients.adapt.catalog import ADAPTATIONS; from fedshift_core.registry import params_of; "
        "print(sum(len(m.params_class().model_fields) for m in r.listed()), "
        "*(len(params_of(e.modules, e.params).model_fields) for e in MODULES.values()), "
        "*(len(params_of(e.adaptation, e.params).model_fields) for e in ADAPTATIONS.values())); "
        "print('torch' in sys.modules)"
    )
    numbers, loaded = run(program)
    assert all(int(number) > 0 for number in numbers.split())
    assert loaded == "False"


def test_the_named_parameters_are_those_of_modules_and_adaptations() -> None:
    for entry in MODULES.values():
        assert params_of(entry.modules, entry.params) is imported(entry.modules).params_model
    for adaptation in ADAPTATIONS.values():
        kind = params_of(adaptation.adaptation, adaptation.params)
        assert kind is imported(adaptation.adaptation).params_model


def test_a_wrong_key_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(*_: object) -> None:
        pytest.fail("a SuperLink was started")

    monkeypatch.setattr(running, "_begun", begin)
    with pytest.raises(ConfigError, match=r"unknown key train\.lrr"):
        running.run({"experiment": "handwritten", "set": "train.lrr=1"}, {})
