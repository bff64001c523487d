"""A method that is an approximation of its paper's says so in every table, on every page and in the log."""

from fedshift_app.config import fits, registry
from fedshift_core.registry import Method

NAME, LABEL = "fedmlp", "fedmlp (approximation)"
WHY = registry.get(NAME).approximation


def test_only_what_says_so_is_labelled() -> None:
    assert WHY
    assert [m.label for m in registry.listed() if m.label != m.name] == [LABEL]
    assert registry.label("gone") == "gone" and registry.approximation_line("fedavg") == ""
    recipe = Method(name="mine", title="Mine", of=NAME).made_of(registry.get(NAME))
    assert recipe.label == "mine (approximation)"
    for table in (registry.markdown(), fits.privacy()):
        assert f"| `{NAME}` (approximation) | " in table and table.count("(approximation)") == 1
