"""YAML is read and written alike with libyaml, where PyYAML has it, and without."""

from pathlib import Path

import pytest
import yaml

from fedshift_core.yaml_files import as_yaml, parse, places_of

ODD = (
    "a: \tb",
    "a:\tb",
    "\ta: b",
    "a: {b: c, d}",
    "a: |+\n  b\n\n",
    "a: \ud800",
    "a: \x07",
    "a: b: c",
    "a: *x",
    "{a: 1, a: 2}",
    "- a\nb",
    "[" * 30,
    "a: 0x_",
    "a: 1e999",
    "a: @b",
    "a: -",
    "a: - b",
    "--- a\n--- b",
    "a: '",
    "",
    "~",
)


def test_what_is_odd_is_read_or_refused_in_one_line() -> None:
    errors = []
    for text in ODD:
        try:
            parse(text)
        except ValueError as error:
            errors.append(str(error))
    assert 10 < len(errors) < len(ODD) and not any("\n" in error for error in errors)


def test_places_are_those_of_keys_and_entries_by_number_and_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("modules:\n  - name: f2dc\n    tau: 0.1\n  - x\noff: 1\n")
    entry = {("modules", 0): (2, 5), ("modules", "f2dc"): (2, 5), ("modules", "f2dc", "tau"): (3, 5)}
    rest = {("modules",): (1, 1), ("modules", "f2dc", "name"): (2, 5), ("off",): (5, 1)}
    assert places_of(file) == entry | rest | dict.fromkeys([("modules", 1), ("modules", "x")], (4, 5))


def test_what_is_written_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    content = {"b": [1, 2.5, None, True, {"c": "é 'x': #y\nz"}], "a": {"yes": "no", "1": "1e3"}}
    text = as_yaml(content)
    assert list(parse(text)) == ["b", "a"] and parse(text) == content
    monkeypatch.delattr(yaml, "CSafeDumper")
    monkeypatch.delattr(yaml, "CSafeLoader")
    assert as_yaml(content) == text and parse(f"{text}\n") == content


def test_a_name_that_is_no_utf8_is_written_as_pyyaml_writes_it() -> None:
    content = {"data_dir": "images\udcff", "set": "é"}
    assert as_yaml(content) == yaml.dump(content, Dumper=yaml.SafeDumper, sort_keys=False, allow_unicode=True)
