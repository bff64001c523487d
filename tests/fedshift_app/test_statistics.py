"""Statistics of the nodes' images in runs: asked once, shown, sent to all, withheld by owners and with few images."""

import dataclasses
import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from PIL import Image
from support import InlineRun, refusal_of
from traffic import Pair, asked, changing, noting
from words import config as config_of

from fedshift.lab.pages.report import site_images
from fedshift.run import reading
from fedshift_app import client_app
from fedshift_app.config.resolving import resolve
from fedshift_app.features.statistics import node as statistics
from fedshift_app.features.statistics.node import report_of
from fedshift_app.flower.internals import identify_process, make_context
from fedshift_app.node.data import Place, own_images
from fedshift_app.node.policy import Policy
from fedshift_core.errors import FederationError
from fedshift_core.wire import names
from fedshift_core.wire.records import decode
from fedshift_datasets.base import ImageSet

SHORT = "train.epochs=1 allocation.share=0.06 dataset.domains=[scan,sketch]"
SHARED = f"{SHORT} statistics.share=nodes"


def questions(seen: list[Pair]) -> list[int]:
    """Return the nodes that were asked for their statistics."""
    queries = [asked(message) for message, _ in seen if message.metadata.message_type == "query"]
    return [config[names.NODE_INDEX] for config in queries if names.SITE_IMAGES in config]


def sent(seen: list[Pair], record: str = names.SITE_IMAGES) -> list[Any]:
    """Return the statistics that were sent to nodes."""
    return [decode(m.content.array_records[record]) for m, _ in seen if record in m.content.array_records]


def of_node_3() -> ImageSet:
    config = config_of(SHARED)
    return own_images(config, Place("sketch", 3, 4, config.dataset.source(), True, 1)).train


def test_each_node_is_asked_once_also_by_a_resumed_run_and_all_get_means(run_inline: InlineRun) -> None:
    seen: list[Pair] = []
    run = run_inline(f"rounds=1 {SHARED}", grid=noting(seen))
    given = [m.metadata.message_type for m, _ in seen if names.SITE_IMAGES in m.content.array_records]
    assert (questions(seen), {*given}) == ([0, 1, 2, 3], {"train", "evaluate"})
    shown, first = run.results["statistics"], sent(seen)[0]
    assert (first["nodes"].tolist(), first["domains"].tolist()) == ([0, 1, 2, 3], [0, 1, 0, 1])
    np.testing.assert_array_equal(first["mean"], [site["mean"] for site in shown["sites"]])
    own, site = of_node_3(), shown["sites"][3]
    np.testing.assert_allclose(site["mean"], (own.x / 255).mean(axis=(0, 1, 2)), atol=1e-12)
    assert (site["images"], [*map(int, site["images_of_class"])]) == (
        len(own),
        np.bincount(own.y, minlength=10).tolist(),
    )

    seen.clear()
    run_inline("", grid=noting(seen), resume=str(run.folder), rounds=2)
    assert questions(seen) == []
    for arrays in sent(seen):
        for name, array in arrays.items():
            np.testing.assert_array_equal(array, first[name])
    assert json.loads((run.folder / "statistics.json").read_text())["sites"] == shown["sites"]

    part = site_images.section(reading.read(run.folder).sections.get("statistics"))
    assert [row[0] for row in part.tables[0].rows] == [site["site"] for site in shown["sites"]]
    assert shown["differ"] in part.notes[1] and len(part.figures) == 1


def test_nothing_travels_where_nobody_asks_and_sharing_changes_no_bit(run_inline: InlineRun) -> None:
    seen: list[Pair] = []
    plain = run_inline(f"rounds=1 {SHORT}", grid=noting(seen))
    assert questions(seen) == sent(seen) == []
    assert not (plain.folder / "statistics.json").exists()
    server = run_inline(f"rounds=1 {SHORT} statistics.share=server", grid=noting(seen))
    assert (questions(seen), sent(seen)) == ([0, 1, 2, 3], [])
    assert plain.results["weights_sha256"] == server.results["weights_sha256"]


def test_too_few_images_and_broken_answers(run_inline: InlineRun) -> None:
    few = f"{SHORT} statistics.least_images=100000"
    run = run_inline(f"rounds=1 {few} statistics.share=server")
    assert [site["kept"] for site in run.results["statistics"]["sites"]] == ["few"] * 4
    with pytest.raises(FederationError, match=r"statistics\.share=nodes"):
        run_inline(f"rounds=1 {few} statistics.share=nodes")

    def lie(message: Message, reply: Message) -> Message:
        said = reply.content.config_records.get(names.CONFIG)
        if said and names.STATISTICS_IMAGES in said:
            said[names.STATISTICS_IMAGES] = 10**6
        return reply

    run = run_inline(f"rounds=1 {SHARED}", grid=changing(lie, nodes=[0]))
    (kept,) = [site["kept"] for site in run.results["statistics"]["sites"] if "kept" in site]
    assert kept.startswith("statistics-images ") and run.rounds[0]["left_out"] == []  # it trains all the same


def test_single_images_are_told_once_and_go_to_all_nodes(run_inline: InlineRun) -> None:
    seen: list[Pair] = []
    given = f"{SHORT} statistics.least_images=2 statistics.image_share="
    run = run_inline(f"method=fedccrl rounds=1 {given}0.5", grid=noting(seen))
    assert questions(seen) == [0, 1, 2, 3]
    styles, *others = sent(seen, names.IMAGE_STYLES)
    images = [site["images"] for site in run.results["statistics"]["sites"]]
    assert np.bincount(styles["nodes"]).tolist() == [n // 2 for n in images]
    for arrays in others:
        np.testing.assert_array_equal(arrays["mean"], styles["mean"])
    held = (of_node_3().x / 255).mean(axis=(1, 2))
    of_node = styles["mean"][styles["nodes"] == 3]
    assert max(np.abs(held - row).max(axis=1).min() for row in of_node) < 1e-6  # each is that of one of its images
    assert "styles" not in json.dumps(run.results["statistics"])

    seen.clear()
    run_inline("", grid=noting(seen), resume=str(run.folder), rounds=2)
    assert questions(seen) == []
    np.testing.assert_allclose(sent(seen, names.IMAGE_STYLES)[-1]["std"], styles["std"])
    with pytest.raises(FederationError, match=r"statistics\.image_share=0\.0001"):
        run_inline(f"method=fedccrl rounds=1 {given}0.0001")


# --- real nodes and image files ----------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a site of 12 training images of two classes: one of another size, one gray."""
    monkeypatch.setenv("FEDSHIFT_STATE", str(tmp_path / "state"))
    rng = np.random.default_rng(0)
    for kind, split, number in product(("bar", "disc"), ("train", "test"), range(6)):
        place = tmp_path / "images" / split / kind / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        odd = kind * (split == "train" and number == 0)
        image = Image.fromarray(rng.integers(0, 255, (30, 30, 3) if odd == "bar" else (24, 20, 3), dtype=np.uint8))
        image.convert("L" if odd == "disc" else "RGB").save(place)
    return tmp_path / "images"


def policy_of(folder: Path, text: str) -> str:
    file = folder.parent / "policy.yaml"
    file.write_text(text)
    file.chmod(0o600)
    return str(file)


def ask(
    folder: Path, policy: str, given: str = "statistics.share=server statistics.least_images=5", method: str = "fedavg"
) -> ConfigRecord:
    identify_process()
    context: Context = make_context(7, {"domain": "north", "data-dir": str(folder), "policy": policy}, {})
    keys = "dataset.classes=[bar,disc] dataset.domains=[north,south] allocation.validation_fraction=0"
    text = f"{keys} model.name=cnn dataset.size=32 {given}"
    config = resolve({"experiment": "", "dataset": "folders", "method": method, "rounds": 2, "set": text})
    entries: dict[str, Any] = {
        names.RUN_ID: "a" * 32, names.NODE_INDEX: 0, names.ENGINE: "deployment", names.RUN: config.model_dump_json(),
        names.SERVER_ROUND: 1, names.SITE_IMAGES: True,
    }  # fmt: skip
    content = RecordDict({"arrays": ArrayRecord(), "knowledge": ArrayRecord(), "config": ConfigRecord(entries)})
    reply = client_app.app(Message(content, 7, "query"), context)
    if reply.has_error():
        raise FederationError(reply.error.reason)
    return reply.content.config_records[names.CONFIG]


def leaking(**told: Any) -> Any:
    """Return what reports of a site's images as no owner allows it."""
    return lambda site, least: dataclasses.replace(report_of(site, 2), **told)


def test_a_real_node_tells_what_its_owner_lets_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert dict(ask(folder, "strict")) == {names.STATISTICS_KEPT: "policy"}
    said = ask(folder, "open")
    # 11 of one size and one of another, which would be a single image: neither is named
    sizes = [said[name] for name in (names.STATISTICS_SIZES, names.STATISTICS_SIZE_COUNTS)]
    modes = [said[name] for name in (names.STATISTICS_MODES, names.STATISTICS_MODE_COUNTS)]
    assert (said[names.STATISTICS_IMAGES], sizes, modes) == (12, [["other"], [12]], [["other"], [12]])
    assert "statistics.share=off" in refusal_of(FederationError, ask, folder, "open", "statistics.share=off")
    policy = policy_of(folder, "statistics: true\nleast_images: 6\n")
    assert ask(folder, policy)[names.STATISTICS_IMAGES] == 12
    monkeypatch.setattr(statistics, "report_of", leaking(modes={"L": 1}))
    assert "least_images=6" in refusal_of(FederationError, ask, folder, policy)


def test_a_real_node_tells_of_single_images_what_its_owner_lets_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("statistics.least_images=5 statistics.image_share=0.5", "fedccrl")
    assert len(ask(folder, "open", *given)[names.STATISTICS_STYLES]) == 6 * 6  # type: ignore[arg-type]
    policy = policy_of(folder, "statistics: true\n")
    said = ask(folder, policy, *given)
    assert said[names.STATISTICS_IMAGES] == 12 and names.STATISTICS_STYLES not in said
    monkeypatch.setattr(statistics, "report_of", leaking(styles=((0.5,) * 6,)))
    assert "image_statistics=false" in refusal_of(FederationError, ask, folder, policy, *given)
    with pytest.raises(ValueError, match="needs statistics: true"):
        Policy(image_statistics=True)
