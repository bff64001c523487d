"""A bundle whose ZIP file is an attack by itself: it is read in memory, within bounds, and written nowhere."""

import io
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
from flwr.supercore.fab import Fab
from flwr.supernode import start_client_internal
from flwr.supernode.servicer.runtime import runtime_handlers

from fedshift.site.deploy import node_waits
from fedshift_app.node import own_code
from fedshift_app.node.own_code import Code

PROJECT = '[project]\nname = "fedshift"\nversion = "0.1.0"\n[tool.flwr.app]\npublisher = "fedshift"\n'
pytestmark = pytest.mark.filterwarnings("ignore:Duplicate name")


def zipped(*files: tuple[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", kind) as bundle:
        for name, content in [(own_code.PROJECT, PROJECT.encode()), *files]:
            bundle.writestr(zipfile.ZipInfo(name), content, kind)
    return made.getvalue()


def damaged() -> bytes:
    """Return a bundle whose file is not what its checksum says."""
    return zipped(("a.py", b"0123456789"), kind=zipfile.ZIP_STORED).replace(b"0123456789", b"x123456789")


def lying() -> bytes:
    """Return a bundle of which the directory says that a file has a byte."""
    content = bytearray(zipped(("a.py", bytes(1000))))
    place = content.rindex(b"PK\x01\x02")
    content[place + 24 : place + 28] = struct.pack("<I", 1)
    return bytes(content)


@pytest.mark.parametrize("name", ["../../escape.py", "/tmp/escape.py", "a/" * 200 + "b.py"])
def test_names_that_lead_elsewhere_are_names(name: str, here: Path) -> None:
    codes = [own_code.of_bundle(zipped(*[(name, b"")] * number)) for number in range(3)]
    assert len({code.sha256 for code in codes}) == 3  # of two files of one name, both count
    assert own_code.HASH.fullmatch(codes[1].sha256) and own_code.refuse(codes[1], ()) != ""
    assert list(here.iterdir()) == [] and not Path("/tmp/escape.py").exists()


@pytest.mark.parametrize(
    "made",
    [
        lambda: b"", lambda: b"PK\x03\x04 no zip", damaged, lying,
        lambda: zipped(("bomb.py", bytes(own_code.MOST_UNPACKED))),  # 64 kB
        lambda: zipped(*[(f"{i}.py", bytes(own_code.MOST_UNPACKED // 4)) for i in range(5)]),
        lambda: zipped(*[(f"{i}.py", b"") for i in range(own_code.MOST_FILES)]),
        lambda: bytes(own_code.MOST_BUNDLE + 1),
        lambda: zipped((own_code.PROJECT, b"a = " + b"[" * 100_000)),
        lambda: zipped((own_code.PROJECT, b"project = 1")),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_and_harms_nothing(made: Any) -> None:
    code = own_code.of_bundle(made())
    assert code == Code() and own_code.refuse(code, ("", own_code.installed())) != ""


def test_a_process_that_works_on_messages_gets_a_note_in_place_of_a_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's own handler, as a started SuperNode has it: no other program of Flower's finds code there."""
    handlers: Any = runtime_handlers
    node: Any = start_client_internal
    monkeypatch.setattr(handlers, "fab_to_proto", handlers.fab_to_proto)
    monkeypatch.setattr(node, "get_fused_config_from_fab", node.get_fused_config_from_fab)
    node_waits.keep_bundles(node, handlers)
    content = zipped(("fedshift_app/client_app.py", b"raise SystemExit"))
    code = own_code.of_bundle(content)
    given = handlers.fab_to_proto(Fab("0" * 64, content, {})).content
    assert json.loads(given) == {"name": code.name, "version": code.version, "sha256": code.sha256}
    assert node.get_fused_config_from_fab(zipped(), None) == {}
