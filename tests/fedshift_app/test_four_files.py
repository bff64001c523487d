"""A method of FedShift's own is its four files, and a task its room: hardly anything else of the code names it.

That such a method holds the contract of all methods: test_contract.py.
"""

import re

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


#: What knows the second task outside the rooms of tasks and data sets (docs/architecture.md): a third needs no more.
KNOWING = {
    "clients/fedshift_clients/models/catalog.py",
    "clients/fedshift_clients/models/unet.py",
    "fedshift/export/__init__.py",
    "fedshift/export/predicting.py",
    "fedshift_app/config/dataset_section.py",
    "fedshift_app/node/policy.py",
}
MOST = 8
ROOMS = ("fedshift_app/tasks/", "datasets/")
WORDS = re.compile(
    r"""segmentation|MaskOptions|\bdice\b|\boutlined\b|\btask["')\]]* *([!=]=| in [("'{])""", re.IGNORECASE
)
MASK = re.compile(r"\bmasks?\b", re.IGNORECASE)
#: Where a mask is something else: noise that a secure sum cancels, a method's choice of weights, a torchvision tensor.
OTHER_MASKS = (
    "clients/fedshift_clients/features.py",
    "clients/fedshift_clients/images/",
    "clients/fedshift_clients/methods/",
    "clients/fedshift_clients/modules/",
    "clients/fedshift_clients/training/node.py",
    "fedshift/lab/grid/costs/dry_run.py",
    "fedshift_app/features/gma/",
    "fedshift_app/features/secure_sums/",
    "fedshift_core/params.py",
    "fedshift_core/secure/",
    "fedshift_core/seeding.py",
    "fedshift_core/wire/names.py",
    "strategies/fedshift_strategies/methods/",
)


def test_a_task_is_its_room() -> None:
    files = [path for part in PARTS[:6] for path in (ROOT / part).rglob("*") if path.suffix in (".py", ".j2", ".html")]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files}
    knowing = {
        name
        for name, text in texts.items()
        if not name.startswith(ROOMS)
        and (WORDS.search(text) or (MASK.search(text) and not name.startswith(OTHER_MASKS)))
    }
    more = ", ".join(sorted(knowing - KNOWING))
    assert not more, f"{more}: knows the second task; its room states what others ask (fedshift_core/tasks.py)"
    assert knowing == KNOWING and len(KNOWING) <= MOST
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert not [name for name in KNOWING if f"`{name}`" not in page]
