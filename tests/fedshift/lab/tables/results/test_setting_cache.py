"""Settings that were worked out before are the same, are forgotten with the files that made them, and spare torch."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, refusal_of

from fedshift.lab.tables.compare import compare
from fedshift.lab.tables.results import loading, setting_cache, settings
from fedshift.lab.tables.results.setting_cache import cached, may_keep, used
from fedshift_app.config import registry
from fedshift_core.errors import ConfigError

RUNS = ROOT / "docs" / "results" / "digits-shift-momentum"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache folder."""
    monkeypatch.setenv("FEDSHIFT_CACHE", str(tmp_path / "cache"))
    for function in (settings.own_settings, settings.usual_settings, settings.paper_settings):
        function.cache_clear()
    return tmp_path / "cache"


def number() -> int:
    """Return another number each time."""
    number.last = getattr(number, "last", 0) + 1  # type: ignore[attr-defined]
    return number.last  # type: ignore[attr-defined, no-any-return]


def test_the_second_table_is_the_same_and_imports_neither_torch_nor_flower() -> None:
    with used():
        first = compare([RUNS], allow_different=True).markdown()
    before = loading.read([RUNS]).runs
    with used():
        after = loading.read([RUNS]).runs
    assert [run.resolved for run in after] == [run.resolved for run in before]
    assert [(run.config, list(run.config)) for run in after] == [(run.config, list(run.config)) for run in before]
    program = (
        "import sys; from pathlib import Path; from fedshift.lab.tables.compare import compare\n"
        "from fedshift.lab.tables.results.setting_cache import used\n"
        "with used(): print(compare([Path(sys.argv[1])], allow_different=True).markdown(), end='')\n"
        "assert not {'torch', 'flwr', 'scipy.stats'} & sys.modules.keys(), 'imported'"
    )
    done = subprocess.run([sys.executable, "-c", program, RUNS], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.stderr, done.stdout) == ("", first)


def test_values_are_kept_by_kind_and_content_for_their_owner_alone(folder: Path) -> None:
    with used():
        one = cached("a", {"x": 1}, number)
        assert cached("a", {"x": 1}, number) == one
        assert len({one, cached("b", {"x": 1}, number), cached("a", {"x": 1.0}, number)}) == 3
        assert cached("a", object(), number) != cached("a", object(), number)  # JSON holds no such thing
    with used():
        assert cached("a", {"x": 1}, number) == one
    assert cached("a", {"x": 1}, number) != one  # outside the block
    assert (folder / setting_cache.FILE).stat().st_mode & 0o777 == 0o600


def test_changed_files_and_damaged_ones_are_forgotten(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with used():
        values = [cached("a", 1, number)]
    for text in ("{", "[1]", '{"stamp": 5}', json.dumps({"stamp": setting_cache._stamp(), "kept": [1]})):
        (folder / setting_cache.FILE).write_text(text)
        with used():
            values.append(cached("a", 1, number))
    monkeypatch.setattr(setting_cache, "_stamp", lambda: "of another file")
    with used():
        values.append(cached("a", 1, number))
    assert len(set(values)) == len(values)


def test_the_stamp_follows_each_file(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    seen = set()
    for name, text in (("a.py", "1"), ("inner/b.yaml", "1"), ("a.py", "12"), ("c.txt", "1")):
        (tmp_path / name).write_text(text)
        seen.add("".join(sorted(setting_cache._files(str(tmp_path)))))
    assert len(seen) == 3


def test_nothing_is_kept_next_to_things_of_others_nor_of_what_fails(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> Any:
        raise ConfigError("no")

    with used():
        assert str(refusal_of(ConfigError, cached, "a", 1, fails)) == "no"
        one = cached("a", 1, number)
        monkeypatch.setitem(registry.METHODS._files, "own", (registry.get("fedavg"), Path("own.py")))
        assert cached("a", 1, number) != one
    monkeypatch.undo()
    monkeypatch.setenv("FEDSHIFT_CACHE", str(folder))
    monkeypatch.setitem(registry.METHODS._files, "own", (registry.get("fedavg"), Path("own.py")))
    with used():
        assert cached("a", 1, number) != one


def test_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setting_cache, "MOST", 2)
    with used():
        values = [cached("a", i, number) for i in range(3)]
    with used():
        assert [cached("a", i, number) == values[i] for i in (1, 2, 0)] == [True, True, False]


@pytest.mark.parametrize(
    "layers",
    [
        {"dataset": {"name": "handwritten"}, "plugins": ["own.py"]},
        {"dataset": {"name": "folders", "of": "folders"}},
        {"dataset": {"name": "folders"}},
        {"dataset": {"name": "unknown"}},
        {"dataset": "handwritten"},
        {},
    ],
)
def test_settings_that_other_files_decide_are_not_kept(layers: dict[str, Any]) -> None:
    assert may_keep({"dataset": {"name": "handwritten"}})
    assert not may_keep(layers)
