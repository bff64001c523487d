"""Statistics of the nodes' images in runs: asked once, shown, sent to all, withheld by owners and with few images."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, RecordDict
from PIL import Image
from support import InlineRun, ListeningGrid, refusal_of

from fedshift.lab.pages.report import site_images
from fedshift.run import reading
from fedshift.site.deploy import exporting
from fedshift_app import client_app, server_app
from fedshift_app.config.resolving import resolve
from fedshift_app.features.statistics import node as statistics
from fedshift_app.features.statistics.node import report_of
from fedshift_app.flower.internals import identify_process, make_context
from fedshift_app.node import setup
from fedshift_app.node.data import Place, own_images
from fedshift_app.node.policy import Policy
from fedshift_core.errors import FederationError
from fedshift_core.wire import names
from fedshift_core.wire.records import decode

SHORT = "train.epochs=1 allocation.share=0.1 dataset.domains=[scan,sketch]"
SHARED = f"{SHORT} statistics.share=nodes"


@dataclasses.dataclass
class Watching:
    """Notes questions about statistics, and who was sent those of all nodes."""

    asked: list[int] = dataclasses.field(default_factory=list)
    sent: list[tuple[str, dict[str, Any]]] = dataclasses.field(default_factory=list)
    styles: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    @property
    def grid(self) -> Any:
        return answering(self.note)

    def note(self, message: Message, reply: Message) -> Message:
        kind, given = message.metadata.message_type, message.content
        if kind == MessageType.QUERY and names.SITE_IMAGES in given.config_records[names.CONFIG]:
            self.asked.append(int(str(given.config_records[names.CONFIG][names.NODE_INDEX])))
        if names.SITE_IMAGES in given.array_records:
            self.sent.append((kind, decode(given.array_records[names.SITE_IMAGES])))
        if names.IMAGE_STYLES in given.array_records:
            self.styles.append(decode(given.array_records[names.IMAGE_STYLES]))
        return reply


def answering(change: Callable[[Message, Message], Message]) -> Any:
    """Return a grid in which ``change`` gives the replies."""

    class Grid(ListeningGrid):
        def pass_on(self, message: Message, reply: Message) -> Message:
            return change(message, reply)

    return Grid


def test_each_node_is_asked_once_also_by_a_resumed_run_and_all_get_means(
    run_inline: InlineRun,
) -> None:
    watching = Watching()
    run = run_inline(rounds=1, grid=watching.grid, set=SHARED)
    assert watching.asked == [0, 1, 2, 3]
    assert {kind for kind, _ in watching.sent} == {MessageType.TRAIN, MessageType.EVALUATE}
    shown = json.loads((run.folder / "statistics.json").read_text())
    first = watching.sent[0][1]
    assert first["nodes"].tolist() == [0, 1, 2, 3]
    assert first["domains"].tolist() == [0, 1, 0, 1]
    np.testing.assert_array_equal(first["mean"], [site["mean"] for site in shown["sites"]])
    config = resolve({"set": SHARED})
    own = own_images(config, Place("sketch", 3, 4, config.dataset.source(), True, 1)).train
    np.testing.assert_allclose(shown["sites"][3]["mean"], (own.x / 255).mean(axis=(0, 1, 2)), atol=1e-12)
    assert shown["sites"][3]["images"] == len(own)
    assert [int(n) for n in shown["sites"][3]["images_of_class"]] == np.bincount(own.y, minlength=10).tolist()
    assert run.results["statistics"] == shown and "scan" in shown["differ"]

    watching.sent.clear()
    run_inline("", grid=watching.grid, resume=str(run.folder), rounds=2)
    assert watching.asked == [0, 1, 2, 3]  # nobody again
    for _, arrays in watching.sent:
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, first[name])
    assert json.loads((run.folder / "statistics.json").read_text())["sites"] == shown["sites"]

    part = site_images.section(reading.read(run.folder).sections.get("statistics"))
    assert [row[0] for row in part.tables[0].rows] == [site["site"] for site in shown["sites"]]
    assert shown["differ"] in part.notes[1] and len(part.figures) == 1


def test_nothing_travels_where_nobody_asks_and_sharing_changes_no_bit(
    run_inline: InlineRun,
) -> None:
    watching = Watching()
    plain = run_inline(rounds=1, grid=watching.grid, set=SHORT)
    assert watching.asked == watching.sent == []
    assert not (plain.folder / "statistics.json").exists()
    server = run_inline(rounds=1, grid=watching.grid, set=f"{SHORT} statistics.share=server")
    assert watching.asked == [0, 1, 2, 3]
    assert watching.sent == []
    assert plain.results["weights_sha256"] == server.results["weights_sha256"]


def test_too_few_images_and_broken_answers(run_inline: InlineRun) -> None:
    few = f"{SHORT} statistics.least_images=100000"
    run = run_inline(rounds=1, set=f"{few} statistics.share=server")
    assert [site["kept"] for site in run.results["statistics"]["sites"]] == ["few"] * 4
    with pytest.raises(FederationError, match=r"statistics\.share=nodes"):
        run_inline(rounds=1, set=f"{few} statistics.share=nodes")

    def lie(message: Message, reply: Message) -> Message:
        said = reply.content.config_records.get(names.CONFIG) if reply.has_content() else None
        if said and names.STATISTICS_IMAGES in said and message.metadata.dst_node_id == 1000:
            said[names.STATISTICS_IMAGES] = 10**6
        return reply

    run = run_inline(rounds=1, grid=answering(lie), set=SHARED)
    kept = [site["kept"] for site in run.results["statistics"]["sites"] if "kept" in site]
    assert len(kept) == 1 and kept[0].startswith("statistics-images ")
    assert run.rounds[0]["left_out"] == []  # it trains all the same


def test_a_run_goes_on_while_the_only_node_that_tells_is_late(
    run_inline: InlineRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node of sketch works from round 2 on; that of scan tells nothing."""
    folders = exporting.export(resolve({"set": SHORT}), 2, tmp_path / "nodes")
    monkeypatch.setattr(server_app, "_engine", lambda grid: setup.DEPLOYMENT)
    monkeypatch.setenv("FEDSHIFT_STATE", str(tmp_path / "state"))
    rows: list[int] = []

    def late(message: Message, reply: Message) -> Message:
        kind, asks = message.metadata.message_type, names.SITE_IMAGES in message.content.config_records[names.CONFIG]
        if message.metadata.dst_node_id == 1000 and kind == MessageType.TRAIN:
            told = message.content.array_records.get(names.SITE_IMAGES)
            rows.append(0 if told is None else len(decode(told)["nodes"]))
        if asks and message.metadata.dst_node_id == 1001 and kind == MessageType.QUERY and not rows:
            return Message(Error(code=names.RAISED, reason="no disk"), reply_to=message)
        return reply

    def grid(*args: Any) -> Any:
        made = answering(late)(*args)
        for i, (folder, policy) in enumerate(zip(folders, ("strict", "open"), strict=True)):
            node = {"domain": folder.domain, "data-dir": str(folder.path), "partition-id": i, "policy": policy}
            made._contexts[1000 + i] = make_context(1000 + i, node, {})
        return made

    run = run_inline(nodes=2, rounds=3, grid=grid, method="fedrdn", set=f"{SHORT} federation.min_nodes=1")
    assert rows[0] == 0 < rows[1] == rows[2]
    assert [line["nodes"] for line in run.rounds] == [[0, 1]] * 3


def test_single_images_are_told_once_and_go_to_all_nodes(run_inline: InlineRun) -> None:
    watching = Watching()
    given = f"{SHORT} statistics.least_images=2"
    run = run_inline(rounds=1, grid=watching.grid, method="fedccrl", set=f"{given} statistics.image_share=0.5")
    assert watching.asked == [0, 1, 2, 3]
    images = [site["images"] for site in run.results["statistics"]["sites"]]
    styles = watching.styles[0]
    assert np.bincount(styles["nodes"]).tolist() == [n // 2 for n in images]
    for arrays in watching.styles:
        np.testing.assert_array_equal(arrays["mean"], styles["mean"])
    config = resolve({"set": SHARED})
    own = own_images(config, Place("sketch", 3, 4, config.dataset.source(), True, 1)).train.x / 255
    of_node = styles["mean"][styles["nodes"] == 3]
    held = own.mean(axis=(1, 2))
    assert max(np.abs(held - row).max(axis=1).min() for row in of_node) < 1e-6  # each is that of one of its images
    assert "styles" not in json.dumps(run.results["statistics"])

    run_inline("", grid=watching.grid, resume=str(run.folder), rounds=2)
    assert watching.asked == [0, 1, 2, 3]  # nobody again
    np.testing.assert_allclose(watching.styles[-1]["std"], styles["std"])
    with pytest.raises(FederationError, match=r"statistics\.image_share=0\.0001"):
        run_inline(rounds=1, method="fedccrl", set=f"{given} statistics.image_share=0.0001")


# --- real nodes and image files ----------------------------------------------------------------------


def folder_of(root: Path) -> Path:
    """Write a site of 12 training images of two classes: one of another size, one gray."""
    rng = np.random.default_rng(0)
    for split, number in (("train", 6), ("test", 2)):
        for kind in ("bar", "disc"):
            folder = root / split / kind
            folder.mkdir(parents=True)
            for i in range(number):
                size = (24, 20, 3) if (split, kind, i) != ("train", "bar", 0) else (30, 30, 3)
                image = Image.fromarray(rng.integers(0, 255, size, dtype=np.uint8))
                gray = (split, kind, i) == ("train", "disc", 0)
                (image.convert("L") if gray else image).save(folder / f"{i}.png")
    return root


def ask(
    folder: Path, policy: str, given: str = "statistics.share=server statistics.least_images=5", method: str = "fedavg"
) -> RecordDict:
    identify_process()
    node = {"domain": "north", "data-dir": str(folder), "policy": policy}
    context: Context = make_context(7, node, {})
    keys = "dataset.classes=[bar,disc] dataset.domains=[north,south] allocation.validation_fraction=0"
    text = f"{keys} model.name=cnn dataset.size=32 {given}"
    config = resolve({"experiment": "", "dataset": "folders", "method": method, "rounds": 2, "set": text})
    entries: dict[str, Any] = {
        names.RUN_ID: "a" * 32, names.NODE_INDEX: 0, names.ENGINE: "deployment", names.RUN: config.model_dump_json(),
        names.SERVER_ROUND: 1, names.SITE_IMAGES: True,
    }  # fmt: skip
    content = RecordDict({"arrays": ArrayRecord(), "knowledge": ArrayRecord(), "config": ConfigRecord(entries)})
    reply = client_app.app(Message(content, context.node_id, MessageType.QUERY), context)
    if reply.has_error():
        raise FederationError(reply.error.reason)
    return reply.content


def test_a_real_node_tells_what_its_owner_lets_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSHIFT_STATE", str(tmp_path / "state"))
    folder = folder_of(tmp_path / "images")
    strict = ask(folder, "strict").config_records[names.CONFIG]
    assert dict(strict) == {names.STATISTICS_KEPT: "policy"}
    said = ask(folder, "open").config_records[names.CONFIG]
    assert said[names.STATISTICS_IMAGES] == 12
    # 11 of one size and one of another, which would be a single image: neither is named
    assert (said[names.STATISTICS_SIZES], said[names.STATISTICS_SIZE_COUNTS]) == (["other"], [12])
    assert (said[names.STATISTICS_MODES], said[names.STATISTICS_MODE_COUNTS]) == (["other"], [12])
    assert "statistics.share=off" in refusal_of(FederationError, ask, folder, "open", "statistics.share=off")
    file = tmp_path / "policy.yaml"
    file.write_text("statistics: true\nleast_images: 6\n")
    file.chmod(0o600)
    assert ask(folder, str(file)).config_records[names.CONFIG][names.STATISTICS_IMAGES] == 12
    monkeypatch.setattr(
        statistics, "report_of", lambda site, least: dataclasses.replace(report_of(site, 2), modes={"L": 1})
    )
    assert "least_images=6" in refusal_of(FederationError, ask, folder, str(file))


def test_a_real_node_tells_of_single_images_what_its_owner_lets_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSHIFT_STATE", str(tmp_path / "state"))
    folder, given = folder_of(tmp_path / "images"), "statistics.least_images=5 statistics.image_share=0.5"
    said = ask(folder, "open", given, "fedccrl").config_records[names.CONFIG]
    assert len(said[names.STATISTICS_STYLES]) == 6 * 6
    file = tmp_path / "policy.yaml"
    file.write_text("statistics: true\n")
    file.chmod(0o600)
    said = ask(folder, str(file), given, "fedccrl").config_records[names.CONFIG]
    assert said[names.STATISTICS_IMAGES] == 12
    assert names.STATISTICS_STYLES not in said
    monkeypatch.setattr(
        statistics, "report_of", lambda site, least: dataclasses.replace(report_of(site, 2), styles=((0.5,) * 6,))
    )
    assert "image_statistics=false" in refusal_of(FederationError, ask, folder, str(file), given, "fedccrl")
    with pytest.raises(ValueError, match="needs statistics: true"):
        Policy(image_statistics=True)
