"""YAML is read and written alike with libyaml, where PyYAML has it, and without."""

import pytest
import yaml
from support import ROOT

from fedshift_core.yaml_files import _parse, as_yaml

ODD = (
    "a: \tb", "a:\tb", "\ta: b", "%YAML 1.1\n---\na: b", "a: [b:c, {d:e}]", "a: {b: c, d}", "? a\n: b",
    "a: 'b\n\n  c'", "a: >\n  b\n  c\n\n  d", "a: |+\n  b\n\n", 'a: "\\u0085\\U0001f600\\/"', "a: \u0085b",
    "a: \ud800", "a: \x07", "a: b: c", "a: &x [1]\nb: *x", "a: *x", "{a: 1, a: 2}", "- a\nb", "[" * 30, "a: 0x_",
    "a: 1e999", "a: !!set {b}", "a: @b", "a: b #c", "a: b#c", "a: -", "a: - b", "--- a\n--- b", "a: 1:30",
    "\ufeffa: b", "a: b\r\nc: d\r", "a: '", "", "~", "a: 010", "a: 1_000",
)  # fmt: skip


def test_what_is_read_and_what_is_refused_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [*ODD, *(path.read_text() for path in sorted((ROOT / "conf" / "datasets").glob("*.yaml")))]

    def outcome(text: str) -> str:
        try:
            return repr(_parse(text, scalar_keys=False))
        except ValueError as error:
            return f"refused: {error}"

    outcomes = {text: outcome(text) for text in texts}
    assert 10 < sum(value.startswith("refused") for value in outcomes.values()) < len(texts) - 10
    monkeypatch.setattr(yaml, "__with_libyaml__", False)
    assert {text: outcome(text) for text in texts} == outcomes


def test_what_is_written_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    content = {"b": [1, 2.5, None, True, {"c": "é 'x': #y\nz"}], "a": {"yes": "no", "1": "1e3"}}
    text = as_yaml(content)
    assert list(_parse(text, scalar_keys=False)) == ["b", "a"] and _parse(text, scalar_keys=False) == content
    monkeypatch.setattr(yaml, "__with_libyaml__", False)
    assert as_yaml(content) == text


def test_a_name_that_is_no_utf8_is_written_as_pyyaml_writes_it() -> None:
    content = {"data_dir": "images\udcff", "set": "é"}
    assert as_yaml(content) == yaml.dump(content, Dumper=yaml.SafeDumper, sort_keys=False, allow_unicode=True)
