"""Which loss terms of a method have no gradient where features never change, and the line that says so."""

from collections.abc import Callable
from typing import Any

import pytest
from support import InlineRun
from torch import Tensor
from words import config as config_of

from fedshift_app.config import registry
from fedshift_app.run import build, initial_model
from fedshift_clients.training.batches import Batch
from fedshift_clients.training.trainer import LocalTrainer
from fedshift_core.registry import Method

METHODS = {m.name: m for m in registry.listed() if m.terms}
SHORT = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.08 train.batch_size=16"
FROZEN = "model.freeze=encoder"
#: Their terms are over layers that train: where none does, they are left out.
OF_LAYERS = {"fdse", "fedrcl"}
#: Their rounds or phases of the encoder alone, or norms of their own within it, need one that trains.
REFUSED = {"fedicon", "fedpac", "gperxan"}
OF_EACH_KIND = ("f2dc", "fedproto", "fedrcl")
SWITCHES = [(name, term, switch) for name, m in METHODS.items() if name not in REFUSED for term in m.of_features
            for switch in str(m.switches.get(term, "")).split()]  # fmt: skip

Gradients = Callable[[str, str], dict[str, set[bool]]]


def some(names: Any) -> list[Any]:
    return [name if name in OF_EACH_KIND else pytest.param(name, marks=pytest.mark.long) for name in names]


@pytest.fixture
def gradients(run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch) -> Gradients:
    """Return a function that makes a short run and returns whether each own term had a gradient, step by step."""
    seen: dict[str, set[bool]] = {}
    plain = LocalTrainer.terms_of

    def recorded(self: LocalTrainer, batch: Batch) -> dict[str, Tensor]:
        terms = plain(self, batch)
        for name, term in terms.items():
            seen.setdefault(name, set()).add(term.requires_grad)
        return terms

    def of_run(method: str, more: str) -> dict[str, set[bool]]:
        seen.clear()
        run_inline(f"method={method} nodes=2 rounds=2 {SHORT} {METHODS[method].short} {more}")
        return {name: values for name, values in seen.items() if name != "ce"}

    monkeypatch.setattr(LocalTrainer, "terms_of", recorded)
    return of_run


def line_of(method: str, more: str) -> str:
    config = config_of(f"method={method} {METHODS[method].short} {more}")
    return build.idle_terms_line(config, initial_model.plain(config).model)


@pytest.mark.parametrize("method", some(name for name in METHODS if name not in REFUSED))
def test_a_method_declares_which_terms_have_no_gradient(method: str, gradients: Gradients) -> None:
    m, projection = METHODS[method], f"{FROZEN} model.projection=16"
    idle = {name: {name not in m.of_features} for name in m.terms}
    assert gradients(method, FROZEN) == ({} if method in OF_LAYERS else idle)
    assert bool(line_of(method, FROZEN)) == bool(m.of_features)
    assert gradients(method, projection) == {name: {True} for name in m.terms}
    assert line_of(method, projection) == ""


@pytest.mark.long
@pytest.mark.parametrize(("method", "term", "switch"), SWITCHES)
def test_a_switch_takes_the_term_away(method: str, term: str, switch: str, gradients: Gradients) -> None:
    """Or gives it a gradient."""
    name, _, wanted = switch.partition("=")
    assert name in METHODS[method].params_class().model_fields
    off = {"none": "mlp"}[wanted] if wanted else "false" if name.startswith("use_") else "0"
    more = f"{FROZEN} method.{name}={off}" + " statistics.image_share=0" * (name == "copies")  # refused without copies
    assert gradients(method, more).get(term, {True}) == {True}
    assert term not in line_of(method, more).replace(";", ",").replace(",", " ").split()


#: A method and settings, with the terms that are named.
NAMED = {
    f"fedproto {FROZEN}": "proto",
    f"fedsa {FROZEN}": "anchor, margin",
    "fedproto model.freeze=none": "",
    f"fedproto {FROZEN} modules=[f2dc]": "",  # they train, on the way to the features
    "fpl model.name=resnet10 model.freeze=stages:4": "cpcl, upcr",
    "fpl model.name=resnet10 model.freeze=stages:3": "",
}


@pytest.mark.parametrize("typed", NAMED)
def test_the_line_names_the_terms(typed: str) -> None:
    line = line_of(*typed.split(" ", 1))
    assert bool(line) == bool(NAMED[typed]) and NAMED[typed] in line


@pytest.mark.parametrize("wrong", [{"of_features": ("other",)}, {"switches": {"mine": "mu"}}])
def test_only_terms_of_the_method_are_declared(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not one of its terms"):
        Method(**({"name": "x", "title": "x", "terms": ("mine",)} | wrong))


# --- a second view of each image --------------------------------------------------------------------------------------
