"""What composes with every method: each feature's names on the wire, and its class on either side.

A feature is one entry of ``FEATURES``, one class in ``strategies/fedshift_strategies/features`` and one in
``clients/fedshift_clients/features``. The names that it declares are all that it may send: the node's check of
messages (``fedshift_app.node.requests``), the server's check of replies, and the table of docs/reference/wire.md are
made of them.

A package adds a feature by an entry point of the group ``fedshift.features``; a run uses it where its configuration
names it: ``features=[{name: NAME, KEY: VALUE}]``. FedShift's own features have keys of their own, and are always there.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from pydantic import BaseModel

from fedshift_core.disclosure import CLASS, IMAGE, SUM, Word
from fedshift_core.extensions import Registry
from fedshift_core.params import Params
from fedshift_core.shown import History, Shown
from fedshift_core.wire import names as wire

#: Values of an option with which a feature does nothing.
_OFF: tuple[Any, ...] = (None, False, 0, "none", "off", "fixed", (), (wire.AVERAGED,))
#: What a key may hold, as it says it; of a switch only a feature knows what it means.
TYPES: dict[str, type] = {"int": int, "float": float, "text": str, "bytes": bytes}


@dataclass(frozen=True)
class Key:
    """One name on the wire.

    Attributes:
        name: The name; one that ends in ``/`` or ``=`` is followed by a domain, a layer or a part of the work.
        holds: Type and shape.
        meaning: What it says, for the reference.
        replaces_scores: A message with this key asks for something else than scores.
        images: It is a number of the node's own images, behind the other numbers of its feature.
        word: What it tells of a node's images, where that is another word than its feature's.
    """

    name: str
    holds: str
    meaning: str
    replaces_scores: bool = False
    images: bool = False
    word: Word | None = None

    def refuse(self, value: object) -> str:
        """Return why a value is not what the key holds, as far as that is one of ``TYPES``; empty if it is."""
        each, listed = self.holds.removeprefix("list of "), self.holds.startswith("list of ")
        kind = TYPES.get(each)
        if kind is None:
            return ""
        parts = value if listed and isinstance(value, list) else [value]
        fits = isinstance(value, list) == listed and all(type(part) is kind for part in parts)
        fits = fits and all(math.isfinite(part) for part in parts if isinstance(part, float))
        return "" if fits else f"it must be {'a list of ' if listed else ''}{each}"

    def fits(self, name: str) -> bool:
        """Tell whether a name on the wire is this one."""
        return name.startswith(self.name) if self.name.endswith(("/", "=")) else name == self.name


@dataclass(frozen=True)
class Feature:
    """A feature.

    Attributes:
        name: Its name.
        title: What it does, in one line.
        option: The key of the configuration that turns it on.
        server: Its class on the server (``module:Class``), a ``ServerFeature``; empty: none.
        node: Its class on the node, a ``NodeFeature``; empty: none.
        params: Parameters of an entry of the section ``features``; FedShift's own have none.
        train: What a message to train may hold in its record ``config``.
        evaluate: Likewise a message to evaluate.
        train_reply: What the reply to a message to train may hold in its record ``metrics``.
        evaluate_reply: Likewise the reply to a message to evaluate.
        introduction: Likewise what a node says of itself before the first round.
        query: What a question of the feature may hold in its record ``config``.
        query_reply: Likewise the answer to it.
        records: Records of its own, in either direction.
        tells: What the numbers depend on of a node's images; empty: on nothing but their number.
        word: What its numbers and arrays tell of a node's images (``fedshift_core.disclosure``); None: nothing.
        shows: It decides no number of a run, which may go on with it or without.
        show: Its hook of what is seen of it (``module:function``, ``fedshift_core.shown``); empty: nothing.
        section: The model of what it has in ``results.json`` of one round alone, and in files; empty: nothing.
    """

    name: str
    title: str
    option: str
    server: str | type[Any] = ""
    node: str | type[Any] = ""
    params: type[Params] = Params
    train: tuple[Key, ...] = ()
    evaluate: tuple[Key, ...] = ()
    train_reply: tuple[Key, ...] = ()
    evaluate_reply: tuple[Key, ...] = ()
    introduction: tuple[Key, ...] = ()
    query: tuple[Key, ...] = ()
    query_reply: tuple[Key, ...] = ()
    records: tuple[Key, ...] = ()
    tells: str = ""
    word: Word | None = None
    shows: bool = False
    show: str | Callable[[History], Shown] = ""
    section: str | type[BaseModel] = ""

    @property
    def key(self) -> str:
        """The key of the configuration that turns it on."""
        return self.option.partition("=")[0]

    @property
    def file(self) -> str:
        """The key of its section in ``results.json``, with which its files begin."""
        return self.name.replace("-", "_")

    def is_on(self, config: Any) -> bool:
        """Tell whether a run's configuration turns it on; other packages' are on where it names them."""
        key, _, wanted = self.option.partition("=")
        value = functools.reduce(getattr, key.split("."), config) if key else True
        return str(value).lower() == wanted if wanted else value not in _OFF


#: The messages whose names a feature declares.
KINDS = (
    "train", "evaluate", "train_reply", "evaluate_reply", "introduction", "query", "query_reply", "records",
)  # fmt: skip


def shared_name(features: Iterable[Feature]) -> str:
    """Return a name that two features declare for the same kind of message; empty if there is none."""
    declared = tuple(features)
    for kind in KINDS:
        keys: list[Key] = [key for feature in declared for key in getattr(feature, kind)]
        for key, other in combinations(keys, 2):
            if key.fits(other.name) or other.fits(key.name):
                return other.name
    return ""


def _keys(*names: str, word: Word | None = None) -> tuple[Key, ...]:
    return tuple(Key(name, "", "", word=word) for name in names)


_WORK = (
    wire.RUN, wire.ENGINE, wire.RUN_ID, wire.KEPT_IN, wire.RESUMED_AFTER, wire.CHOSEN, wire.MEMORY_ROUND,
    wire.START_DIGEST, wire.SERVER_ROUND, wire.NODE_INDEX, wire.SCALAR,
)  # fmt: skip
_DONE = _keys(wire.NUM_EXAMPLES, word=SUM) + _keys(wire.KEPT, wire.STARTED_ANEW, wire.WITHHELD)
#: The names that messages have without any feature.
CORE = Feature(
    "core", "What every message has", "",
    train=_keys(*_WORK),
    evaluate=_keys(*_WORK, wire.DOMAINS, wire.DRAWN, wire.STARTS, wire.STOPS),
    train_reply=_DONE + _keys(wire.LOSS, wire.LOSS_TERM, word=SUM),
    evaluate_reply=_DONE + _keys(wire.CORRECT, wire.COUNT, wire.LOSS_SUM, wire.OTHER_CORRECT, word=SUM),
    introduction=_keys(
        wire.DOMAIN, wire.PARTITION_ID, wire.NUM_PARTITIONS, wire.SHARED_TEST, wire.FASTEST, wire.WITHHELD,
    ) + _keys(wire.NUM_TEST, wire.UNHELD_TEST, wire.HELD_TEST, word=SUM)
    + _keys(wire.CLASS_COUNTS, word=CLASS),
    query=_keys(*_WORK),
    records=_keys(wire.ARRAYS, wire.KNOWLEDGE, wire.CONFIG, wire.METRICS, wire.START),
)  # fmt: skip

#: FedShift's own, in the order in which a round passes them.
OURS = (
    Feature(
        "profile", "Where the time of a round goes", "profile=true",
        "fedshift_app.features.profile.server:Profile", "fedshift_app.features.profile.node:ProfileOnNode",
        train_reply=(
            Key(wire.SECONDS, "float", "seconds of a part of the node's work"),
            Key(wire.PROCESS, "int", "number of the process that worked"),
        ),
        evaluate_reply=(
            Key(wire.SECONDS, "float", "seconds of a part of the node's work"),
            Key(wire.PROCESS, "int", "number of the process that worked"),
        ),
        shows=True,
        show="fedshift_app.features.profile.show:show",
    ),
    Feature(
        "public-set", "One copy of the public images on all nodes", "dataset.public",
        "fedshift_app.features.public_set.server:PublicSet", "fedshift_app.features.public_set.node:PublicSetOnNode",
        introduction=(
            Key(wire.PUBLIC, "text", "SHA-256 of the node's copy of the public images"),
            Key(wire.NUM_PUBLIC, "int", "number of public images"),
        ),
    ),
    Feature(
        "bn-statistics", "Scores with other statistics of BatchNorm", "evaluate.bn",
        "fedshift_app.features.bn_statistics.server:BatchNormStatistics",
        "fedshift_app.features.bn_statistics.node:BatchNormStatisticsOnNode",
        evaluate=(
            Key(wire.TAKE_STATISTICS, "bool", "take statistics of training images in place of a score", True),
            Key(wire.BN_WAYS, "list of text", "statistics to score with, that of the accuracy first"),
            Key(wire.BN_IMAGES, "int", "largest number of training images behind statistics"),
        ),
        evaluate_reply=(
            Key(f"{wire.OTHER_CORRECT}{wire.BN_SCORE}", "int", "correct predictions with other statistics"),
        ),
        records=(
            Key(wire.STATISTICS, "arrays (C,) float32", "to the node: re-estimated means and variances by layer"),
            Key(wire.KNOWLEDGE, "arrays (C,) float64", "to the server: sums and sums of squares by layer"),
        ),
        word=SUM, tells="sums over the node's training images of each channel, of at least two images",
        show="fedshift_app.features.bn_statistics.show:show",
    ),
    Feature(
        "statistics", "Statistics of the nodes' images, reported once", "statistics.share",
        "fedshift_app.features.statistics.server:SiteStatistics",
        "fedshift_app.features.statistics.node:SiteStatisticsOnNode",
        train=(
            Key(wire.SITE_IMAGES, "bool", "means and variances of all nodes' images go along"),
            Key(wire.IMAGE_STYLES, "bool", "means and deviations of single images of all nodes go along"),
        ),
        evaluate=(
            Key(wire.SITE_IMAGES, "bool", "means and variances of all nodes' images go along"),
            Key(wire.IMAGE_STYLES, "bool", "means and deviations of single images of all nodes go along"),
        ),
        query=(Key(wire.SITE_IMAGES, "bool", "tell statistics of the training images"),),
        query_reply=(
            Key(wire.STATISTICS_KEPT, "text", "why the node tells none: policy or few"),
            Key(wire.STATISTICS_IMAGES, "int", "training images behind them"),
            Key(wire.STATISTICS_OF, "list of float", "mean, variance, percentiles and histogram of each channel"),
            Key(wire.STATISTICS_STYLES, "list of float", "means and deviations of some images, six numbers each",
                word=IMAGE),
            Key(wire.STATISTICS_SIZES, "list of text", "sizes of the images' files, or other"),
            Key(wire.STATISTICS_SIZE_COUNTS, "list of int", "images of each size"),
            Key(wire.STATISTICS_MODES, "list of text", "modes of the images' files, or other"),
            Key(wire.STATISTICS_MODE_COUNTS, "list of int", "images of each mode"),
        ),
        records=(
            Key(wire.SITE_IMAGES, "arrays (K, 3) float64", "to the node: means and variances of K nodes' images"),
            Key(wire.IMAGE_STYLES, "arrays (M, 3) float32", "to the node: means and deviations of M images"),
        ),
        word=SUM, tells="means, variances, percentiles and histograms of the node's training images; with "
        "statistics.image_share means and deviations of single ones",
        show="fedshift_app.features.statistics.show:show", section="fedshift_app.features.statistics.show:Statistics",
    ),
    Feature("normalization", "Images normalised by statistics of the nodes", "images.normalization",
            node="fedshift_app.features.normalization.node:NormalizationOnNode"),
    Feature(
        "privacy", "Clipping and noise on what leaves a node", "privacy.name",
        "fedshift_app.features.privacy.server:Privacy", "fedshift_app.features.privacy.node:PrivacyOnNode",
        train_reply=(Key(wire.EPSILON, "float", "epsilon that the node's rounds so far have spent, by their number"),),
        show="fedshift_app.features.privacy.show:show",
    ),
    Feature(
        "secure-sums", "Sums over nodes of which the server sees no part", "federation.secure_sums",
        "fedshift_app.features.secure_sums.server:SecureSums",
        "fedshift_app.features.secure_sums.node:SecureSumsOnNode",
        train=(
            Key(wire.SECURE_NODES, "list of int", "the other nodes that have dealt shares"),
            Key(wire.SECURE_TEXTS, "list of bytes", "their encrypted shares for this node"),
            Key(wire.SECURE_DIGESTS, "list of bytes", "their commitments to these, two of each"),
            Key(wire.SECURE_SUMS, "list of text", "how each contribution is a sum"),
            Key(wire.SECURE_TERMS, "list of text", "losses in the sum"),
        ),
        evaluate=(
            Key(wire.SECURE_NODES, "list of int", "the other nodes that have dealt shares", True),
            Key(wire.SECURE_TEXTS, "list of bytes", "their encrypted shares for this node", True),
            Key(wire.SECURE_DIGESTS, "list of bytes", "their commitments to these, two of each", True),
        ),
        query=(
            Key(wire.SECURE_STAGE, "text", "keys, shares or unmask"),
            Key(wire.SECURE_PURPOSE, "text", "what is summed: training, or answers in place of scores"),
            Key(wire.SECURE_NODES, "list of int", "the nodes of the round"),
            Key(wire.SECURE_KEYS, "list of bytes", "their public keys for encryption"),
            Key(wire.SECURE_MASK_KEYS, "list of bytes", "their public keys for masks"),
            Key(wire.SECURE_STATEMENTS, "list of bytes", "what each states: its images, and of which classes"),
            Key(wire.SECURE_SIGNED, "list of bytes", "by node its long-term public key and its signature under these"),
            Key(wire.SECURE_ALIVE, "list of int", "nodes whose vectors are in the sum"),
            Key(wire.SECURE_LOST, "list of int", "the others that have dealt shares"),
        ),
        query_reply=(
            Key(wire.SECURE_KEYS, "list of bytes", "public keys of a node, for encryption and for masks"),
            Key(wire.SECURE_STATEMENTS, "list of bytes", "what it states of its images: their number and classes"),
            Key(wire.SECURE_SIGNED, "list of bytes", "its long-term public key and its signature under these"),
            Key(wire.SECURE_TEXTS, "list of bytes", "encrypted shares for the other nodes"),
            Key(wire.SECURE_DIGESTS, "list of bytes", "commitments to the shares of all nodes, two of each"),
            Key(wire.SECURE_SEED, "bytes", "commitment to the seed of the node's mask"),
            Key(wire.SECURE_REVEALED, "list of bytes", "shares: of seeds of nodes in the sum, of keys of lost ones"),
        ),
        show="fedshift_app.features.secure_sums.show:show",
    ),
    Feature("robust", "An average that one node cannot spoil", "aggregation.robust",
            "fedshift_app.features.robust.server:Robust"),
    Feature("gma", "Masks by the agreement of the nodes' signs", "aggregation.gma_tau",
            "fedshift_app.features.gma.server:GradientMasks"),
    Feature(
        "ga", "Weights of nodes by generalisation gaps", "aggregation.weights=ga",
        "fedshift_app.features.ga.server:GeneralisationAdjustment", "fedshift_app.features.ga.node:GapsOnNode",
        train=(Key(wire.GAP, "list of two texts", "loss or accuracy, on images of train or validation"),),
        train_reply=(
            Key(wire.LOCAL_RECEIVED, "float", "loss or accuracy of the weights as they came"),
            Key(wire.LOCAL_TRAINED, "float", "loss or accuracy after local training"),
        ),
        word=SUM, tells="mean loss or accuracy on the node's training or validation images",
    ),
    Feature(
        "afl", "Weights of the domains with the largest loss", "aggregation.weights=afl",
        "fedshift_app.features.afl.server:WorstDomainWeights", "fedshift_app.features.afl.node:ReceivedLossOnNode",
        train=(Key(wire.ASK_LOSS, "bool", "score the weights as they come on the node's training images"),),
        train_reply=(Key(wire.RECEIVED_LOSS, "float", "mean loss of the weights as they came"),),
        word=SUM, tells="mean loss on the node's training images",
    ),
    Feature("server-optimizer", "A step of the server after the average", "server.optimizer",
            "fedshift_app.features.server_optimizer.server:ServerOptimizer"),
    Feature(
        "client-scores", "Scores of the nodes' own models right after local training", "evaluate.client_models",
        "fedshift_app.features.client_scores.server:ClientModels",
        "fedshift_app.features.client_scores.node:ClientModelsOnNode",
        train=(Key(wire.LOCAL_DOMAINS, "list of text", "domains on whose test images the node scores its model"),),
        train_reply=(
            Key(wire.LOCAL_CORRECT, "int", "correct predictions on a domain's test images"),
            Key(wire.LOCAL_COUNT, "int", "test images of a domain", images=True),
            Key(wire.LOCAL_OWN_CORRECT, "int", "correct predictions on the node's own test set"),
            Key(wire.LOCAL_OWN_COUNT, "int", "images of the node's own test set", images=True),
        ),
        word=SUM, tells="correct predictions on test images",
        show="fedshift_app.features.client_scores.show:show",
    ),
    Feature(
        "figures", "Counts behind recall, precision, AUC and calibration", "evaluate.figures",
        "fedshift_app.features.figures.server:CountedFigures", "fedshift_app.features.figures.node:FiguresOnNode",
        evaluate=(Key(wire.FIGURES, "bool", "count predictions, confidence and scores"),),
        records=(Key(wire.COUNTS, "arrays of counts", "confusion matrix, calibration bins and score histograms"),),
        word=CLASS, tells="counts of test images by class, prediction and confidence", shows=True,
        show="fedshift_app.features.figures.show:show", section="fedshift_app.features.figures.show:Figures",
    ),
    Feature(
        "site-figures", "Metrics of each site with 95 % intervals", "evaluate.site_figures",
        "fedshift_app.features.site_figures.server:SiteFigures",
        "fedshift_app.features.site_figures.node:SiteFiguresOnNode",
        evaluate=(Key(wire.ASK_SITE_FIGURES, "bool", "work out metrics with intervals of the node's test images"),),
        records=(
            Key(wire.SITE_FIGURES, "arrays", "metrics, their 95 % intervals, and the images and patients behind them"),
        ),
        word=CLASS, tells="metrics of test images over all and by class, with numbers of images and patients",
        shows=True,
        show="fedshift_app.features.site_figures.show:show", section="fedshift_app.features.site_figures.show:Sites",
    ),
    Feature(
        "class-balance", "Losses for classes of unequal numbers of images", "train.class_weights",
        "fedshift_app.features.class_balance.server:ClassBalance",
        "fedshift_app.features.class_balance.node:ClassBalanceOnNode",
        train=(Key(wire.CLASS_TOTALS, "list of float", "training images of all nodes by class"),),
        evaluate=(Key(wire.CLASS_TOTALS, "list of float", "training images of all nodes by class"),),
    ),
    Feature(
        "validation", "Scores on the nodes' validation parts", "allocation.validation_fraction",
        "fedshift_app.features.validation.server:Validation", "fedshift_app.features.validation.node:ValidationOnNode",
        evaluate=(Key(wire.VALIDATION, "bool", "score the weights on the validation part too"),),
        evaluate_reply=(
            Key(wire.VALIDATION_CORRECT, "int", "correct predictions on the validation part"),
            Key(wire.VALIDATION_COUNT, "int", "images of the validation part", images=True),
            Key(wire.VALIDATION_LOSS_SUM, "float", "cross-entropy summed over the validation part"),
        ),
        introduction=(Key(wire.NUM_VALIDATION, "int", "images of the validation part", images=True),),
        word=SUM, tells="correct predictions and summed loss on validation images",
        show="fedshift_app.features.validation.show:show",
    ),
    Feature("missing-tests", "Which test images of real nodes were not scored", "evaluate.test",
            "fedshift_app.features.missing_tests.server:MissingTests",
            show="fedshift_app.features.missing_tests.show:show"),
)  # fmt: skip

FEATURES: Registry[Feature] = Registry(
    "feature", "fedshift.features", lambda: Feature, {feature.name: feature for feature in OURS}
)


def of_run(entries: Iterable[Mapping[str, Any]]) -> list[tuple[Feature, Params]]:
    """Return FedShift's features, then those that a run's section ``features`` names, each with its parameters."""
    others = [(FEATURES[str(entry["name"])], {k: v for k, v in entry.items() if k != "name"}) for entry in entries]
    return [(feature, feature.params.model_validate(given)) for feature, given in [*((f, {}) for f in OURS), *others]]


def on_in(config: Any) -> list[tuple[Feature, Params]]:
    """Return the features that a run's configuration turns on, each with its parameters."""
    return [(feature, params) for feature, params in of_run(config.features) if feature.is_on(config)]
