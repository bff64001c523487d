"""A method of FedShift's own is its four files: nothing else of the code, the configuration and the tests names it.

That such a method holds the contract of all methods: test_contract.py.
"""

from support import ROOT

NAME = "fednova"
FILES = {
    f"strategies/fedshift_strategies/methods/{NAME}.py",
    f"clients/fedshift_clients/methods/{NAME}.py",
    f"conf/methods/{NAME}.yaml",
    f"tests/strategies/test_{NAME}.py",
}
PARTS = ("fedshift", "fedshift_app", "fedshift_core", "strategies", "clients", "datasets", "conf", "tests")


def test_a_method_is_added_by_its_files_alone() -> None:
    files = [path for part in PARTS for path in (ROOT / part).rglob("*") if path.suffix in (".py", ".yaml", ".toml")]
    naming = {str(path.relative_to(ROOT)) for path in files if NAME in path.read_text(encoding="utf-8").lower()}
    assert naming - {"tests/fedshift_app/test_four_files.py"} == FILES
