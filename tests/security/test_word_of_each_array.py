"""What each array tells of images is derived from what a node sends, and held against the word that is declared.

A real node trains without moving the weights (a learning rate of nothing) on images of which one is replaced or one is
added. What moves is not made of weights alone; where it moves says whether a class or an image is singled out.
"""

import functools
import shutil
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MessageType, RecordDict
from guarded_node import OpenNodes, open_context, run_openly
from numpy.typing import NDArray

from fedshift.run.engine import inline
from fedshift.site.deploy import exporting
from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app import client_app
from fedshift_app.config import registry
from fedshift_app.config.resolving import resolve
from fedshift_app.node import state_folder
from fedshift_clients.training import node as node_training
from fedshift_core import disclosure
from fedshift_core.arrays import Arrays
from fedshift_core.disclosure import CLASS, IMAGE, MODEL, SUM, WORDS, Word
from fedshift_core.errors import ConfigError
from fedshift_core.features import CORE, ours
from fedshift_core.wire import names
from fedshift_core.wire.records import decode
from fedshift_strategies.contributions import behind
from fedshift_strategies.methods.heads import head_of

DOMAINS = ("scan", "sketch")
STILL = (
    "train.lr=1e-60 train.momentum=0 train.weight_decay=0 train.epochs=2 train.batch_size=64 train.precision=float32 "
    "evaluate.every=2 evaluate.figures=false evaluate.site_figures=false federation.min_nodes=2 "
    f"dataset.domains=[{','.join(DOMAINS)}]"
)
EACH = 4  # images of a class on a node
CLASSES = 10
MOVED, OTHER = 3, 5  # classes of which an image is replaced
#: Share of the squared movement that lies in the rows of the image's class, from which on a class is singled out; of a
#: sum over ten classes it is a tenth.
SINGLED_OUT = 0.5

Rows = list[NDArray[Any]]  # by class
Said = dict[str, Arrays]  # the arrays and numbers of a reply, by record
Asked = tuple[str, RecordDict, Said]  # kind of a message, its content and the reply
Words = dict[tuple[str, str, str], Word]  # by kind of message, record and name
#: All features that put numbers of images on the wire, but for one of two rules of weights.
FEATURES = (
    "evaluate.every=1 evaluate.figures=true evaluate.site_figures=true allocation.validation_fraction=0.25 "
    "statistics.share=nodes statistics.image_share=1 statistics.least_images=5 model.name=cnn_bn "
    "evaluate.bn=[averaged,retaken] evaluate.client_models=every "
)


#: An array as it leaves the node when its images differ: ``base``, then by variant.
Sent = dict[str, NDArray[Any]]
#: The class of the image that a variant of a node replaces or adds, and its place among the replaced ones.
VARIANTS = {"first": (MOVED, 0), "second": (MOVED, 1), "other": (OTHER, 0), "more": (MOVED, -1)}


def derived(sent: Sent, weights: Arrays) -> Word:
    """Return the word of an array, by what moves it.

    Args:
        sent: The array.
        weights: The shared weights; an array as long as these, or as their head, is cut as they are.
    """
    base = sent["base"]
    moved = [(label, sent[name]) for name, (label, _) in VARIANTS.items() if not np.array_equal(sent[name], base)]
    if not moved:
        return MODEL
    if any(array.shape != base.shape for _, array in moved):
        return IMAGE if any(array.shape[:1] != base.shape[:1] for _, array in moved) else CLASS
    if base.ndim > 1:
        touched = [(sent[name] != base).reshape(len(base), -1).any(axis=1) for name in ("first", "second")]
        if all(rows.any() for rows in touched) and not (touched[0] & touched[1]).any():
            return IMAGE
    for label, array in moved:
        rows = by_class(array.astype(np.float64) - base, weights)
        if rows and np.square(rows[label]).sum() > SINGLED_OUT * sum(np.square(row).sum() for row in rows):
            return CLASS
    return SUM


def by_class(array: NDArray[Any], weights: Arrays) -> Rows:
    """Return the parts of an array that belong to each class; none of an array without such parts."""
    if array.shape[:1] == (CLASSES,):
        return [*array.reshape(CLASSES, -1)]
    cut: Any = []
    for model in (weights, head_of(weights)):
        if array.shape == (sum(weight.size for weight in model.values()),):
            ends = np.cumsum([weight.size for weight in model.values()])[:-1]
            parts = zip(np.split(array, ends), model.values(), strict=True)
            cut += [[*part.reshape(CLASSES, -1)] for part, weight in parts if weight.shape[:1] == (CLASSES,)]
    return [np.concatenate(rows) for rows in zip(*cut, strict=True)]


# --- a real node, and the real server's messages to it ---


class Nodes:
    """Two nodes of a run, and the first one again with other images."""

    def __init__(self, root: Path) -> None:
        config = resolve({"set": f"dataset.domains=[{','.join(DOMAINS)}] dataset.public=0.1"})
        scan, sketch = exporting.export(config, len(DOMAINS), root / "whole")
        self.others = {name: self._few(scan, *of) for name, of in VARIANTS.items()}
        self.all = (self._few(scan), self._few(sketch))

    def _few(self, given: NodeFolder, changed: int = -1, at: int = 0) -> NodeFolder:
        """Write a node with ``EACH`` images of a class; of one class one of them is replaced, or there is one more."""
        folder = shutil.copytree(given.path, given.path.parent / f"{given.domain}-{changed}-{at}")
        for split in ("train", "test"):
            file = folder / f"{given.domain}_{split}.npz"
            with np.load(file) as archive:
                whole = dict(archive)
            chosen: Any = []
            for label in range(CLASSES):
                places = np.flatnonzero(whole["y"] == label).tolist()
                own = places[: EACH + (label == changed and at < 0 and split == "train")]
                if label == changed and at >= 0:
                    own[at] = places[EACH]
                chosen += own
            np.savez(file, **whole | {key: whole[key][chosen] for key in ("x", "y")})
        return replace(given, path=folder)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Nodes:
    return Nodes(tmp_path_factory.mktemp("nodes"))


def asked(method: str, setting: str, nodes: Nodes, folder: Path, kinds: Collection[str]) -> list[Asked]:
    """Return messages of some kinds that the server sends the first node of a run, and its replies."""
    heard: Any = []

    class Grid(OpenNodes):
        folders = nodes.all

        def _answer(self, message: Message) -> Message:
            kind, content = message.metadata.message_type, RecordDict(dict(message.content))
            reply = super()._answer(message)
            if kind in kinds and inline.index_of(message.metadata.dst_node_id) == 0:
                heard.append((kind, content, said(reply)))
            return reply

    run_openly(Grid, method, 2, f"{STILL} {setting}", folder)
    return heard


def said(reply: Message) -> Said:
    assert not reply.has_error(), reply.error.reason
    sent = {name: decode(record) for name, record in reply.content.array_records.items()}
    for name, record in (*reply.content.metric_records.items(), *reply.content.config_records.items()):
        sent[name] = {key: np.array(value) for key, value in record.items()}
    return sent


def replies(node: NodeFolder, messages: Iterable[Asked]) -> list[Said]:
    """Return what a node that begins anew replies to each message."""
    context = open_context(node)
    given = ((kind, RecordDict(dict(content))) for kind, content, _ in messages)
    return [said(client_app.app(Message(content, context.node_id, kind), context)) for kind, content in given]


@pytest.fixture(autouse=True)
def _drawn_alike(quiet: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw what protects a node alike each time, so that images alone move what it sends."""
    monkeypatch.setattr(node_training, "unpredictable", functools.partial(np.random.default_rng, 0))


def words_of(
    method: str, setting: str, nodes: Nodes, folder: Path, kinds: Collection[str] = (MessageType.TRAIN,)
) -> Words:
    """Return the strictest word of each array and number in two rounds of a method; of weights none."""
    messages = asked(method, setting, nodes, folder / "run", kinds)
    training = next(content for kind, content, _ in messages if kind == MessageType.TRAIN)
    first = Message(RecordDict(dict(training)), 1, MessageType.TRAIN)
    model = client_app.open_client(first, open_context(nodes.all[0]))[0].client.model
    learned = {name for name, _ in model.named_parameters()}
    by_variant = {"base": [reply for _, _, reply in messages]}
    for variant, node in nodes.others.items():
        with pytest.MonkeyPatch.context() as patch:  # a node of its own each
            patch.setenv(state_folder.STATE_DIR, str(folder / variant))
            by_variant[variant] = replies(node, messages)
    words: Words = {}
    for i, (kind, content, _) in enumerate(messages):
        weights = decode(content.array_records["arrays"]) if "arrays" in content else {}
        for record, arrays in by_variant["base"][i].items():
            for name in arrays.keys() - (learned if record == "arrays" else set()):
                word = derived({v: rounds[i][record][name] for v, rounds in by_variant.items()}, weights)
                words[kind, record, name] = max(word, words.get((kind, record, name), MODEL), key=WORDS.index)
    return words


def too_lenient(method: str, setting: str, words: Words) -> list[str]:
    """Return the arrays and numbers that tell more of images than the declared word says."""
    strategy = registry.get(method).strategy_class()
    key, _, value = setting.removeprefix("method.").partition("=")
    lenient = []
    for (kind, record, name), word in words.items():
        if record == names.ARRAYS:
            declared = disclosure.of_shared(name)
        elif (record, kind) == (names.KNOWLEDGE, MessageType.TRAIN):
            declared = behind(strategy, name, {key: value})
        else:
            declared = of_feature(kind, record, name)
        if WORDS.index(declared) < WORDS.index(word):
            lenient.append(f"{record}/{name} is declared {declared!r}, and tells {word!r}")
    return lenient


def of_feature(kind: str, record: str, name: str) -> Word:
    """Return the word that the core's or a feature's key of a name states; none stands for no images."""
    fields = ("introduction", "query_reply") if kind == MessageType.QUERY else (f"{kind}_reply",)
    known = [(key, feature) for feature in (CORE, *ours()) for field in fields for key in getattr(feature, field)]
    if record not in (names.METRICS, names.CONFIG):
        known, name = [(key, feature) for feature in ours() for key in feature.records], record
    return max((key.word or feature.word or MODEL for key, feature in known if key.fits(name)), key=WORDS.index)


#: Weights, means of a class and of all, scores, gradients, styles of images, statistics, sums in whole units.
OFTEN = ("fedavg", "fedcode", "fedmd", "fediir", "stablefdg", "ggeur", "fed3r")


def usual() -> Iterator[Any]:
    """Yield each method that can be used here with its defaults, with settings that make its arrays others, and with
    each other word or switch among its parameters; of each kind of array one method is not for ``make test-all`` alone.
    """
    for method in registry.listed():
        strategy = method.strategy_class()
        settings = dict.fromkeys(["", *strategy.optional.values(), *strategy.behind_with])
        often = len(settings) if method.name in OFTEN else 0
        for name, field in method.params_class().model_fields.items() if strategy.contributes else ():
            given = method.defaults.get(name, field.default)
            for value in (True, False) if field.annotation is bool else getattr(field.annotation, "__args__", ()):
                if isinstance(value, bool | str) and value != given and name != "repeatable_noise":
                    settings[f"method.{name}={str(value).lower() if isinstance(value, bool) else value}"] = None
        for place, setting in enumerate(settings):
            marks = [] if place < often else [pytest.mark.long]
            yield pytest.param(method.name, setting, marks=marks, id=f"{method.name} {setting}".strip())


@pytest.mark.parametrize(("method", "setting"), [*usual()])
def test_no_array_tells_more_than_its_word(method: str, setting: str, nodes: Nodes, tmp_path: Path) -> None:
    try:
        words = words_of(method, setting, nodes, tmp_path)
    except ConfigError as error:
        pytest.skip(f"not allowed here: {error}")
    assert not too_lenient(method, setting, words)


@pytest.mark.parametrize("weights", ["ga", pytest.param("afl", marks=pytest.mark.long)])
def test_nor_does_what_features_send(weights: str, nodes: Nodes, tmp_path: Path) -> None:
    every = (MessageType.TRAIN, MessageType.EVALUATE, MessageType.QUERY)
    words = words_of("fedccrl", f"{FEATURES} aggregation.weights={weights}", nodes, tmp_path, every)
    assert not too_lenient("fedccrl", "", words)
    assert {SUM, CLASS, IMAGE} <= {*words.values()}
