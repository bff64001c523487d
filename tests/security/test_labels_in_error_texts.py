"""A server asks a strict node for labels, tables and files that do not fit: the node's words for them stay at home."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dicom_files
import numpy as np
import own_sites
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedshift_app import client_app
from fedshift_app.config.resolving import resolve
from fedshift_app.flower.internals import identify_process, make_context
from fedshift_app.node import reasons, setup
from fedshift_core.errors import DataError, FedShiftError, NotFiniteError
from fedshift_core.wire import names
from fedshift_strategies.federation import updates

SECRET = "Mueller"
KINDS = (MessageType.QUERY, MessageType.TRAIN, MessageType.EVALUATE)
Plant = Callable[[Path, str], None]
CLASSES = "[bar,cross,disc]"


class Site:
    """A node with images of its own and the policy ``strict``, or another one; a server asks it as it likes."""

    def __init__(self, folder: Path, policy: str = "strict", labels: str = "", classes: str = CLASSES) -> None:
        identify_process()
        self.folder, given = folder, f"dataset.labels={labels}" if labels else ""
        self.config = resolve({"dataset": "folders", "data-dir": str(folder.parent), "method": "fedproto",
                               "set": f"dataset.classes={classes} dataset.domains=[{folder.name},south] "
                                      f"model.name=cnn dataset.size=32 train.epochs=1 {given}"})  # fmt: skip
        own = {"domain": folder.name, "data-dir": str(folder), "threads": 1, "policy": policy}
        self.context = make_context(7, own, {})

    def ask(self, kind: str) -> Message:
        asked: dict[str, Any] = {
            names.RUN_ID: "a" * 32, names.ENGINE: "deployment", names.RUN: self.config.model_dump_json(),
        }  # fmt: skip
        if kind != MessageType.QUERY:
            asked |= {names.SERVER_ROUND: 1, names.NODE_INDEX: 0}
        if kind == MessageType.EVALUATE:
            asked |= {names.DOMAINS: [self.folder.name]}
        content = RecordDict({"arrays": ArrayRecord(), "knowledge": ArrayRecord(), "config": ConfigRecord(asked)})
        self.context.state = RecordDict()
        reply: Message = client_app.app(Message(content, self.context.node_id, kind), self.context)
        return reply


def words_of(reply: Message) -> str:
    """Return all words of a reply: its reason, or names and texts."""
    return str(reply.error.reason) if reply.has_error() else repr(reply.content)


def site_at(root: Path) -> Path:
    own_sites.write(root, ("north",), 36)
    return root / "north"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return site_at(tmp_path_factory.mktemp("site"))


def table(folder: Path, lines: list[str], head: str = "file,label", name: str = "labels.csv") -> None:
    files = [f"{path.relative_to(folder)},{path.parent.name}" for path in sorted(folder.rglob("*.png"))]
    more = "," * head.count(",")
    rows = [line + more[line.count(",") :] for line in files]
    (folder / name).write_text("\n".join([head, *rows, *lines]) + "\n")


def a_label(folder: Path, secret: str) -> None:
    table(folder, [f"disc/002.png,{secret} positive"])


def a_name_of_a_file(folder: Path, secret: str) -> None:
    table(folder, [f"disc/{secret}_1950.png,disc"])


def a_row(folder: Path, secret: str) -> None:
    table(folder, [f"{secret} died,,,,"])


def a_header(folder: Path, secret: str) -> None:
    (folder / "labels.csv").write_text(f"name;{secret};diagnosis\nAnna;030-1;HIV\n")


def a_path(folder: Path, secret: str) -> None:
    table(folder, [f"../{secret}/1.png,disc"])


def a_table_of_patients(folder: Path, secret: str) -> None:
    (folder / "patients.csv").write_text(f"{secret},born\nAnna,1950\n")


def a_patient(folder: Path, secret: str) -> None:
    (folder / "patients.csv").write_text(f"file,patient\ndisc/{secret}.png,{secret}\ndisc/{secret}.png,other\n")


def a_folder_of_a_class(folder: Path, secret: str) -> None:
    (folder / secret).mkdir()
    shutil.copy(min((folder / "disc").iterdir()), folder / secret)


def a_damaged_image(folder: Path, secret: str) -> None:
    (folder / "disc" / f"{secret}.png").write_bytes(min((folder / "disc").iterdir()).read_bytes()[:200])


def a_text_as_an_image(folder: Path, secret: str) -> None:
    (folder / "disc" / f"{secret}.jpg").write_text(f"{secret}, born in 1950")


def a_damaged_dicom(folder: Path, secret: str) -> None:
    data = dicom_files.made(np.zeros((8, 8), np.uint8), PatientName=f"{secret}^Anna", Rows=99)
    (folder / "disc" / f"{secret}.dcm").write_bytes(dicom_files.written(data))


def an_npz_with_other_keys(folder: Path, secret: str) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    np.savez(folder / "north_train.npz", **{secret: np.zeros(3)})


def labels_that_are_texts(folder: Path, secret: str) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    np.savez(folder / "north_train.npz", x=np.zeros((3, 8, 8, 3), np.uint8), y=np.array([secret] * 3))


def a_folder_that_is_gone(folder: Path, secret: str) -> None:
    folder.rename(folder.parent / secret)


PLANTS: tuple[Plant, ...] = (
    a_label, a_name_of_a_file, a_row, a_header, a_path, a_table_of_patients, a_patient, a_folder_of_a_class,
    a_damaged_image, a_text_as_an_image, a_damaged_dicom, an_npz_with_other_keys, labels_that_are_texts,
    a_folder_that_is_gone,
)  # fmt: skip
#: What a node takes as it is, or passes over: no error is due.
TAKEN = (a_table_of_patients, a_patient)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_what_lies_at_a_node_stays_out_of_its_reasons(
    plant: Plant, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The same node says all of it in its own log, and with the policy ``open`` to the server as well."""
    folder = site_at(tmp_path)
    plant(folder, SECRET)
    with caplog.at_level(logging.WARNING, "fedshift"):
        replies = {kind: Site(folder).ask(kind) for kind in KINDS}
    assert not any(SECRET in words_of(reply) for reply in replies.values())
    failed = replies[MessageType.QUERY]
    assert failed.has_error() or plant in TAKEN, words_of(failed)
    if failed.has_error():
        code = str(failed.error.reason).split(":")[0]
        assert failed.error.reason == reasons.sentence(code) and code != reasons.INTERNAL
        full = str(Site(folder, "open").ask(MessageType.QUERY).error.reason)
        assert full != failed.error.reason and full.split("\n")[0][:60] in caplog.text.replace("\n", " ")


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    secret=st.text("abcdefghijklmnopqrstuvwxyz", min_size=9, max_size=12),
    plants=st.sets(st.sampled_from(PLANTS[:-3]), min_size=1, max_size=3),  # the others take all that is there away
    kind=st.sampled_from(KINDS),
)
def test_no_word_of_a_nodes_files_leaves_it(
    site: Path, secret: str, plants: set[Plant], kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("copy") / "north"
    shutil.copytree(site, folder)
    for plant in sorted(plants, key=lambda plant: plant.__name__):
        plant(folder, secret)
    for labels, classes in (("", CLASSES), ("labels.csv", CLASSES), ("patients.csv", "[hiv,hep]")):
        assert secret not in words_of(Site(folder, labels=labels, classes=classes).ask(kind))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DataError("Anna"), "data"), (FedShiftError("Anna"), "refused"), (MemoryError("Anna"), "memory"),
        (RuntimeError("CUDA out of memory. Anna"), "memory"), (OSError(28, "Anna"), "disk"),
        (KeyError("Anna"), "internal"),
        (NotFiniteError("Anna"), "diverged"), (UnicodeDecodeError("utf-8", b"Anna", 0, 1, "Anna"), "internal"),
    ],
)  # fmt: skip
def test_an_error_of_any_class_leaves_as_its_code(
    error: Exception, code: str, site: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*given: Any) -> None:
        raise error

    monkeypatch.setattr(setup, "make_client", fails)
    with caplog.at_level(logging.WARNING, "fedshift"):
        reply = Site(site).ask(MessageType.TRAIN)
    assert reply.error.reason == reasons.sentence(code)
    assert "Anna" in caplog.text


def test_the_server_still_counts_nodes_whose_training_diverged() -> None:
    """It goes back when most nodes come to such numbers, and knows it by these words."""
    assert updates.NOT_FINITE in reasons.sentence("diverged")
    others = [code for code in reasons.SENTENCES if code != "diverged"]
    assert not any(updates.NOT_FINITE in reasons.sentence(code) for code in others)


def test_a_policy_that_cannot_be_read_hides_as_strict_does(site: Path, tmp_path: Path) -> None:
    reply = Site(site, str(tmp_path / "Mueller.yaml")).ask(MessageType.QUERY)
    assert reply.error.reason == "node of north: this node's policy cannot be read"
    context = make_context(7, {"domain": "north", "data-dir": str(site), "policy": str(tmp_path / "none.yaml")}, {})
    assert reasons.of(DataError("Anna"), context)[1] == reasons.sentence("data")
