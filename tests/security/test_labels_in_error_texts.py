"""A server asks a strict node for labels, tables and files that do not fit: the node's words for them stay at home."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import dicom_files
import numpy as np
import own_sites
import pytest
from flwr.app import Message, MessageType
from real_node import AppOfNode

from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app.node import reasons, setup
from fedshift_core.errors import DataError, FedShiftError, NotFiniteError
from fedshift_core.wire import names
from fedshift_strategies.federation import updates

SECRET = "Mueller"
KINDS = (MessageType.QUERY, MessageType.TRAIN, MessageType.EVALUATE)
Plant = Callable[[Path, str], object]
CLASSES = "[bar,cross,disc]"


def node_at(folder: Path, policy: str = "strict", labels: str = "", classes: str = CLASSES) -> AppOfNode:
    """Return a node with images of its own and the policy ``strict``, or another one."""
    about = f"dataset.classes={classes} dataset.domains=[{folder.name},south] dataset.size=32"
    given = f"{about} model.name=cnn train.epochs=1 {f'dataset.labels={labels}' if labels else ''}"
    of = {"dataset": "folders", "data-dir": str(folder.parent)}
    return AppOfNode(NodeFolder(folder, folder.name, 0), given, "fedproto", of, threads=1, policy=policy)


def asked(node: AppOfNode, kind: str) -> Message:
    return node.ask(kind, **({names.DOMAINS: [node.context.node_config["domain"]]} if kind == KINDS[2] else {}))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    own_sites.write(tmp_path, ("north",), 36)
    return tmp_path / "north"


def row(line: str, head: str = "file,label") -> Plant:
    """Return what writes a table of all images with one row more."""

    def plant(folder: Path, secret: str) -> None:
        files = [f"{path.relative_to(folder)},{path.parent.name}" for path in sorted(folder.rglob("*.png"))]
        (folder / "labels.csv").write_text("\n".join([head, *files, line.format(secret)]) + "\n")

    return plant


def file(name: str, text: str) -> Plant:
    return lambda folder, secret: (folder / name.format(secret)).write_text(text.format(secret))


def arrays(**of: Any) -> Plant:
    """Return what puts an archive in the place of all images, in which ``secret`` stands for the word."""

    def plant(folder: Path, secret: str) -> None:
        shutil.rmtree(folder)
        folder.mkdir()
        given = {key.replace("secret", secret): np.array([secret] * 3) if x is None else x for key, x in of.items()}
        np.savez(folder / "north_train.npz", **given)

    return plant


def class_folder(folder: Path, secret: str) -> None:
    (folder / secret).mkdir()
    shutil.copy(min((folder / "disc").iterdir()), folder / secret)


def damaged_image(folder: Path, secret: str) -> None:
    (folder / "disc" / f"{secret}.png").write_bytes(min((folder / "disc").iterdir()).read_bytes()[:200])


def damaged_dicom(folder: Path, secret: str) -> None:
    data = dicom_files.made(np.zeros((8, 8), np.uint8), PatientName=f"{secret}^Anna", Rows=99)
    (folder / "disc" / f"{secret}.dcm").write_bytes(dicom_files.written(data))


#: What a node takes as it is, or passes over: no error is due.
TAKEN: dict[str, Plant] = {
    "patients": file("patients.csv", "{0},born\nAnna,1950\n"),
    "patient": file("patients.csv", "file,patient\ndisc/{0}.png,{0}\ndisc/{0}.png,other\n"),
}
PLANTS: dict[str, Plant] = TAKEN | {
    "label": row("disc/002.png,{} positive"),
    "name of a file": row("disc/{}_1950.png,disc"),
    "row": row("{} died,,,,"),
    "path": row("../{}/1.png,disc"),
    "header": file("labels.csv", "name;{0};diagnosis\nAnna;030-1;HIV\n"),
    "text": file("disc/{0}.jpg", "{0}, born in 1950"),
    "class": class_folder,
    "image": damaged_image,
    "dicom": damaged_dicom,
}
#: These take all that is there away.
EMPTYING: dict[str, Plant] = {
    "keys": arrays(secret=np.zeros(3)),
    "texts": arrays(x=np.zeros((3, 8, 8, 3), np.uint8), y=None),
    "gone": lambda folder, secret: folder.rename(folder.parent / secret),
}


@pytest.mark.parametrize("name", [*PLANTS, *EMPTYING])
def test_what_lies_at_a_node_stays_out_of_its_reasons(name: str, site: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The same node says all of it in its own log, and with the policy ``open`` to the server as well."""
    (PLANTS | EMPTYING)[name](site, SECRET)
    with caplog.at_level(logging.WARNING, "fedshift"):
        failed = node_at(site).ask(MessageType.QUERY)
        for kind in KINDS:
            for labels, classes in (("", CLASSES), ("labels.csv", CLASSES), ("patients.csv", "[hiv,hep]")):
                reply = asked(node_at(site, labels=labels, classes=classes), kind)
                assert SECRET not in (str(reply.error.reason) if reply.has_error() else repr(reply.content))
    assert failed.has_error() or name in TAKEN
    if failed.has_error():
        code = str(failed.error.reason).split(":")[0]
        assert failed.error.reason == reasons.sentence(code) and code != reasons.INTERNAL
        full = str(node_at(site, "open").ask(MessageType.QUERY).error.reason)
        assert full != failed.error.reason and full.split("\n")[0][:60] in caplog.text.replace("\n", " ")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DataError("Anna"), "data"),
        (FedShiftError("Anna"), "refused"),
        (MemoryError("Anna"), "memory"),
        (RuntimeError("CUDA out of memory. Anna"), "memory"),
        (OSError(28, "Anna"), "disk"),
        (KeyError("Anna"), "internal"),
        (NotFiniteError("Anna"), "diverged"),
        (UnicodeDecodeError("utf-8", b"Anna", 0, 1, "Anna"), "internal"),
    ],
)
def test_an_error_of_any_class_leaves_as_its_code(
    error: Exception, code: str, site: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(setup, "make_client", Mock(side_effect=error))
    with caplog.at_level(logging.WARNING, "fedshift"):
        reply = node_at(site).ask(MessageType.TRAIN)
    assert reply.error.reason == reasons.sentence(code)
    assert "Anna" in caplog.text


def test_the_server_still_counts_nodes_whose_training_diverged() -> None:
    """It goes back when most nodes come to such numbers, and knows it by these words."""
    assert [code for code in reasons.SENTENCES if updates.NOT_FINITE in reasons.sentence(code)] == ["diverged"]


def test_a_policy_that_cannot_be_read_hides_as_strict_does(site: Path, tmp_path: Path) -> None:
    reply = node_at(site, str(tmp_path / "Mueller.yaml")).ask(MessageType.QUERY)
    assert reply.error.reason == "node of north: this node's policy cannot be read"
    assert reasons.of(DataError("Anna"), node_at(site, str(tmp_path / "none.yaml")).context)[1] == reasons.sentence(
        "data"
    )
