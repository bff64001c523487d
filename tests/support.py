"""What several tests import: short runs, and clients, losses and strategies on small random numbers."""

import contextlib
import dataclasses
import functools
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import yaml
from flwr.app import ArrayRecord, Message
from numpy.typing import NDArray
from safetensors.numpy import load_file
from torch import Tensor, nn
from typer.testing import CliRunner, Result

from fedshift import cli
from fedshift.lab.tables.results import loading
from fedshift.run.engine import inline
from fedshift_app.config import plugins, registry
from fedshift_app.config.resolving import resolve
from fedshift_app.config.sections import RunConfig
from fedshift_app.features.public_set.server import PublicSet
from fedshift_clients import features as node_halves
from fedshift_clients.adapt.base import Adaptation
from fedshift_clients.base import ClientSetup, DomainClient, RoundInputs, Scores
from fedshift_clients.features import Reply
from fedshift_clients.models.networks import Blueprint, SplitModel
from fedshift_clients.modules.base import AllModules, Modules
from fedshift_clients.training.batches import Batch
from fedshift_clients.training.settings import ImageConfig, ModelConfig, TrainConfig
from fedshift_core import extensions
from fedshift_core.arrays import Arrays
from fedshift_core.features import FEATURES, ours
from fedshift_core.frozen import FrozenDict
from fedshift_core.params import Params
from fedshift_core.registry import imported
from fedshift_core.wire.names import LOSS_TERM, SERVER_ROUND
from fedshift_datasets.base import ImageSet
from fedshift_strategies.base import DomainStrategy
from fedshift_strategies.contributions import check_contribution
from fedshift_strategies.features.base import Phase, Scoring, ServerFeature, Training
from fedshift_strategies.features.catalog import Around
from fedshift_strategies.federation.context import Ask, Engine, ModelFacts, RoundResult, RunContext
from fedshift_strategies.federation.evaluation import Evaluation
from fedshift_strategies.federation.roster import Node
from fedshift_strategies.federation.updates import Update, decode

ROOT = Path(__file__).resolve().parent.parent
#: Where this checkout's packages are, as `PYTHONPATH` has it.
APP_PATH = os.pathsep.join(str(ROOT / folder) for folder in ("", "strategies", "clients", "datasets"))


def json_lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@dataclass(frozen=True)
class Run:
    """A finished run's folder."""

    folder: Path

    @property
    def results(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "results.json").read_text()))

    @property
    def rounds(self) -> list[dict[str, Any]]:
        return json_lines(self.folder / "metrics.jsonl")

    @property
    def timeless(self) -> list[dict[str, Any]]:
        """Return the rounds without what depends on the clock."""
        return [{key: value for key, value in line.items() if key != "seconds"} for line in self.rounds]

    @property
    def config(self) -> dict[str, Any]:
        return dict(yaml.safe_load((self.folder / "config.yaml").read_text()))

    @property
    def weights(self) -> Arrays:
        """Return the shared weights after the last round."""
        return self.kept("weights")

    def kept(self, stem: str) -> Arrays:
        """Return what the last checkpoint has under a name."""
        return load_file(sorted(self.folder.glob(f"checkpoint/{stem}-*.safetensors"))[-1])

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of the log of an event."""
        return [line for line in json_lines(self.folder / "log.jsonl") if line.get("event") == name]


class ListeningGrid(inline.InlineGrid):
    """An inline grid whose traffic a test may see and change."""

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
        requests = list(messages)
        for message in requests:
            self.before(message)
        replies = super().send_and_receive(requests, timeout=timeout)
        return [reply for pair in zip(requests, replies, strict=True) if (reply := self.pass_on(*pair)) is not None]

    def before(self, message: Message) -> None:
        """See a message, or change it, on its way to a node."""

    def pass_on(self, message: Message, reply: Message) -> Message | None:
        """Return the reply that the server gets; None to lose it."""
        return reply


def listening(
    pass_on: Callable[[Any, Any], Message | None] = lambda message, reply: reply,
    before: Callable[[Any], object] = lambda message: None,
) -> type[ListeningGrid]:
    """Return an inline grid with these two functions."""

    class Grid(ListeningGrid):
        def before(self, message: Message) -> None:
            before(message)

        def pass_on(self, message: Message, reply: Message) -> Message | None:
            return pass_on(message, reply)

    return Grid


InlineRun = Callable[..., Run]


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


#: Runs a command in this process: the fixture ``fedshift``.
Command = Callable[..., Ended]


@dataclass(frozen=True)
class SmallDisk:
    """A tmpfs, mounted where ``path`` is."""

    path: Path

    def size(self, size: str) -> None:
        """Make it as large as the words of ``mount`` say: ``"2m"``."""
        self._mount(f"size={size}")

    def read_only(self, yes: bool) -> None:
        """Let nothing be written any more, or again."""
        self._mount("ro" if yes else "rw")

    def _mount(self, option: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{option}", str(self.path)], check=True, capture_output=True)


class Killed(BaseException):
    """What a kill is in a test: no ``except Exception`` sees it."""


def ran(*words: object, env: Any = None, **more: Any) -> "subprocess.CompletedProcess[str]":
    """Run Python with these words in another process; ``env`` is added to the environment."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, env=os.environ | (env or {}), capture_output=True, text=True, **more)


def invoked(*words: object) -> Result:
    """Run ``fedshift`` in this process as Typer's tests do."""
    return CliRunner().invoke(cli.app, [*map(str, words)])


def on_images(names: Iterable[str]) -> list[str]:
    """Return the methods that work on images: not those that need features of a file."""
    return [name for name in names if "features" not in registry.get(name).needs]


def refusal_of(kind: type[Exception], call: Callable[..., Any], *given: Any, **named: Any) -> str:
    """Return the message with which a call is refused: two lines at most."""
    with pytest.raises(kind) as caught:
        call(*given, **named)
    assert str(caught.value).count("\n") <= 1, str(caught.value)
    return str(caught.value)


class _Blank(float):
    """Stands for a figure, its axes and all that they return: takes each call, and is 1 where a number is needed."""

    def __getattr__(self, name: str) -> "_Blank":
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *given: Any, **named: Any) -> "_Blank":
        return self

    def __getitem__(self, place: Any) -> "_Blank":
        return self

    def __iter__(self) -> "Iterator[_Blank]":
        return iter((self, self))

    def subplots(self, rows: int, columns: int, **_: Any) -> NDArray[np.object_]:
        axes = np.empty((rows, columns), object)
        axes.fill(self)
        return axes

    def get_legend_handles_labels(self) -> "tuple[list[_Blank], list[str]]":
        return [self], ["label"]

    def savefig(self, file: Any, **_: Any) -> None:
        file.write('<svg viewBox="0 0 1 1"></svg>')


@contextlib.contextmanager
def undrawn() -> Iterator[None]:
    """Leave figures of reports empty; captions and numbers stay. Drawing takes more than half of a report.

    The places of t-SNE, which only figures show, are the first two numbers of each feature.
    """
    from fedshift.lab.pages.report import maps
    from fedshift.run.html import drawing  # with matplotlib, which most tests do without

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawing, "Figure", lambda **_: _Blank(1.0))
        patch.setattr(maps, "tsne", lambda features, seed: np.asarray(features)[:, :2])
        yield


@functools.cache
def read_once() -> Callable[[Path], loading.Run]:
    """Return what reads a run for a comparison; each run of ``docs/results``, which no test changes, once."""
    read = loading._read
    once = functools.cache(lambda place, whole: read(place))

    def run_of(place: Path) -> loading.Run:
        whole = place.resolve()
        return once(place, whole) if whole.is_relative_to(ROOT / "docs" / "results") else read(place)

    return run_of


def load_benchmark(name: str) -> ModuleType:
    """Return a script of ``benchmarks/``, which is no package, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- clients ---------------------------------------------------------------------------------------

#: Of the clients that tests make: the run's seed, the node's place in the federation, a round with knowledge.
SEED, INDEX, ROUND = 11, 3, 2
#: Classes, the width of the cnn's features, training images. Class 3 has no image.
C, D, N = 4, 64, 20
IMAGES = ImageConfig(crop_padding=2, flip=True, eval_batch=7)

Float = NDArray[np.float64]
Client = TypeVar("Client", bound=DomainClient)


def image_set(n: int = N, size: int = 32, classes: int = C - 1, seed: int = 0) -> ImageSet:
    """Return random images; their classes take turns."""
    x = np.random.default_rng(seed).integers(0, 256, size=(n, size, size, 3), dtype=np.uint8)
    return ImageSet(x, np.arange(n, dtype=np.int64) % classes)


def barred_images(n: int = N, seed: int = 0, classes: int = C - 1) -> ImageSet:
    """Return images that tell their class: another part of them is bright."""
    rng = np.random.default_rng(seed)
    y = np.arange(n, dtype=np.int64) % classes
    x = rng.integers(0, 120, size=(n, 32, 32, 3))
    for image, label in zip(x, y, strict=True):
        image[8 * label : 8 * label + 8] += 130
    return ImageSet(x.astype(np.uint8), y)


def batch(b: int = 8, first: int = 0, y: Sequence[int] | None = None, epoch: int = 0, classes: int = C - 1) -> Batch:
    """Return a batch of random images, drawn from the seed ``first``; their classes take turns, or are ``y``."""
    labels = [i % classes for i in range(b)] if y is None else list(y)
    return Batch(drawn(first, len(labels), 3, 32, 32), torch.tensor(labels), epoch)


def normalised(images: ImageSet, config: ImageConfig) -> Tensor:
    """Return images as a model sees them in a test."""
    x = (images.x / 255 - np.array(config.mean)) / np.array(config.std)
    return torch.from_numpy(x.transpose(0, 3, 1, 2).astype(np.float32))


def client_setup(
    model: str = "cnn", *, bn: str = "average", per_node: Sequence[str] = (), index: int = INDEX, seed: int = SEED,
    images: ImageConfig = IMAGES, **train: Any,
) -> ClientSetup:  # fmt: skip
    """Return who a client is and how it trains: two epochs, in batches of eight."""
    settings: dict[str, Any] = {"epochs": 2, "batch_size": 8, "lr": 0.05, "precision": "float32"}
    return ClientSetup(
        seed=seed, index=index, device=torch.device("cpu"), images=images, train=TrainConfig(**settings | train),
        model=ModelConfig.model_validate({"name": model, "bn": bn, "per_node": per_node}),
    )  # fmt: skip


def new_client(
    kind: type[Client], params: dict[str, Any] | None = None, knowledge: Arrays | None = None, *,
    scalars: Mapping[str, int | float | str] | None = None, train_set: ImageSet | None = None,
    test_set: Callable[[str], ImageSet] | None = None, own_sets: Mapping[str, ImageSet] | None = None,
    network: SplitModel | None = None, initial: int = 0, modules: Sequence[Modules] = (),
    adaptation: Adaptation | None = None, public_set: Callable[[], ImageSet] | None = None, **options: Any,
) -> Client:  # fmt: skip
    """Return a client of a method.

    Args:
        kind: Its class.
        params: The method's own parameters.
        knowledge: The arrays that the server sent besides weights.
        scalars: The numbers and words that it sent.
        train_set: Its images; random ones if None.
        test_set: The test set of each domain; the training images if None.
        own_sets: Images of its own that it does not train on, by split.
        network: Its model; the method's own if None.
        initial: Seed of the initial weights.
        modules: Those in the model.
        adaptation: What is done before a test is scored.
        public_set: Gives the public set.
        options: For ``client_setup``.
    """
    images = image_set() if train_set is None else train_set
    configured, own = client_setup(**options), kind.params_model(**params or {})
    plan = Blueprint(configured.model, C, images.x.shape[1], initial)
    model = kind.build_model(plan, own) if network is None else network
    parts = AllModules(modules)
    model = parts.wrap(model, plan)
    made = kind(
        model, configured, own, images, test_set or (lambda domain: images), own_sets, modules=parts,
        adaptation=adaptation, public_set=public_set, features=node_features(*ASKED_FOR),
    )  # fmt: skip
    made.prepare(RoundInputs(dict(knowledge or {}), dict(scalars or {})))
    return made


#: Features that do on a node what a message asks, and nothing unasked.
ASKED_FOR = (
    "bn-statistics", "ga", "afl", "client-scores", "figures", "site-figures", "class-balance", "validation"
)  # fmt: skip


def node_features(*names: str, config: RunConfig | None = None) -> node_halves.Features:
    """Return the node halves of FedShift's features of these names."""
    return node_halves.Features([(feature, Params()) for feature in ours() if feature.name in names], config)


def fedavg(**options: Any) -> DomainClient:
    """Return the client to which a method with its own terms off must be equal."""
    return new_client(DomainClient, **options)


def begun(made: Client, server_round: int = ROUND, epoch: int = 0) -> Client:
    """Return the client in an epoch of a round, before its first batch."""
    made.start_round(server_round)
    made.start_epoch(epoch)
    return made


def in_phase(made: Client, server_round: int = ROUND, place: int = 0) -> Client:
    """Return the client in a phase of a round, as the training loop leaves it before the phase's first batch."""
    made.start_round(server_round)
    phases = made.phases(server_round)
    made.phase = phases[place]
    for name, parameter in made.model.named_parameters():
        parameter.requires_grad_(made.phase.learns(name))
    made.start_epoch(sum(phase.epochs for phase in phases[:place]))
    return made


def shared(of: DomainClient) -> list[NDArray[Any]]:
    """Return copies of the weights that travel."""
    state = of.model.state_dict()
    return [state[name].numpy().copy() for name in of.shared_names]


def weights(of: DomainClient) -> Arrays:
    """Return copies of all weights by name."""
    return {name: tensor.numpy().copy() for name, tensor in of.model.state_dict().items()}


def whole(of: DomainClient) -> list[NDArray[Any]]:
    """Return copies of all weights in their order."""
    return list(weights(of).values())


def fit(
    of: DomainClient, server_round: int = 1, given: list[NDArray[Any]] | None = None
) -> tuple[list[NDArray[Any]], dict[str, Any]]:
    """Train for a round, from the client's own weights if none are given; return arrays and metrics."""
    arrays, number, metrics = of.fit(shared(of) if given is None else given, {SERVER_ROUND: server_round})
    assert number == len(of.train_set)
    return arrays, metrics


def scored(of: DomainClient, request: Mapping[str, Any]) -> Reply:
    """Return what the client's own weights score, as it would leave the node."""
    return of.scores(of._call(shared(of), request))


def changed(before: Arrays, after: Arrays) -> set[str]:
    """Return the names of the weights that are not equal bit for bit."""
    assert before.keys() == after.keys()
    return {name for name in before if not np.array_equal(before[name], after[name])}


def parts_of(names: Iterable[str]) -> set[str]:
    """Return the parts of a model in which weights lie: ``encoder``, ``classifier``, ..."""
    return {name.split(".")[0] for name in names}


def scored_weights(of: DomainClient, test: ImageSet) -> tuple[Scores, list[Arrays]]:
    """Score a test set; return all weights at each pass over images of it, too."""
    seen: Any = []
    score = of.score

    def spy(*given: Any) -> tuple[int, float]:
        seen.append(weights(of))
        return score(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of, "score", spy)
        return of.score_test(test), seen


def same(a: Sequence[NDArray[Any]], b: Sequence[NDArray[Any]]) -> bool:
    """Return whether as many arrays, as there must be, are equal bit for bit."""
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def terms_in(metrics: Mapping[str, Any]) -> list[str]:
    """Return the names of the loss terms that a client reported."""
    return [name.removeprefix(LOSS_TERM) for name in metrics if name.startswith(LOSS_TERM)]


def features_of(model: SplitModel, x: Tensor, part: str = "encoder") -> Float:
    """Return what a part of the model makes of images, in float64."""
    with torch.no_grad():
        return as64(model.get_submodule(part)(x))


def gradients(made: DomainClient, given: Batch) -> dict[str, tuple[float, dict[str, Tensor]]]:
    """Return each term of a batch, and its gradient with respect to each weight that is trained."""
    trained = {name: weight for name, weight in made.model.named_parameters() if weight.requires_grad}
    content = {}
    for name, term in made.terms_of(given).items():
        grads = torch.autograd.grad(
            term, list(trained.values()), retain_graph=True, allow_unused=True, materialize_grads=True
        )
        content[name] = (float(term.detach()), dict(zip(trained, grads, strict=True)))
    return content


def flat_gradients(made: DomainClient, given: Batch) -> dict[str, tuple[float, NDArray[np.float32]]]:
    """Return each term of a batch, and its gradient with respect to all weights as one row."""
    return {
        name: (value, torch.cat([grad.flatten() for grad in grads.values()]).numpy())
        for name, (value, grads) in gradients(made, given).items()
    }


def global_prototypes(labels: Sequence[int] = (3, 0, 2)) -> Arrays:
    """Return knowledge as the server sends it: class 1 has none, and they are not in the order of the classes."""
    g = np.random.default_rng(1).uniform(size=(len(labels), D)).astype(np.float32)
    return {"prototypes": g, "labels": np.array(labels)}


class Extra(Modules):
    """Modules: a second classifier, which may stay on the node, and a generator, as F2DC's hold one."""

    def __init__(self, private: bool = True) -> None:
        super().__init__(Params())
        self._private = private

    @property
    def personal(self) -> bool:
        """Whether the classifier stays."""
        return self._private

    def wrap(self, model: SplitModel, plan: Blueprint) -> SplitModel:
        """Put the classifier into a model."""
        model.register_module("extra", nn.Linear(model.feature_dim, model.num_classes))
        return model

    def private(self, model: SplitModel) -> frozenset[str]:
        """Return the names of what stays."""
        return frozenset(name for name in model.state_dict() if self._private and name.startswith("extra."))

    def start_round(self, model: SplitModel, rng: torch.Generator) -> None:
        """Hang a generator on the model, which cannot be copied."""
        model.noise = torch.Generator()

    def terms(self, model: SplitModel, batch: Batch) -> dict[str, Tensor]:
        """Return the classifier's cross-entropy."""
        return {"extra": nn.functional.cross_entropy(model.get_submodule("extra")(model(batch.x)[0]), batch.y)}


# --- losses ----------------------------------------------------------------------------------------


def rng(seed: int = 0) -> torch.Generator:
    """Return a generator."""
    return torch.Generator().manual_seed(seed)


def drawn(seed: int, *shape: int) -> Tensor:
    """Return normal numbers."""
    return torch.randn(*shape, generator=rng(seed))


def labels(seed: int, b: int, c: int) -> Tensor:
    """Return ``b`` random labels of ``c`` classes."""
    return torch.randint(0, c, (b,), generator=rng(seed + 1000))


def as64(x: Tensor) -> Float:
    """Return a tensor as the slow versions take it."""
    return x.detach().to(torch.float64, copy=True).numpy()


def gradient(loss: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return d loss / d x; zeros where the loss does not depend on x."""
    leaf = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(loss(leaf), leaf, allow_unused=True, materialize_grads=True)
    return grad


def numerical_gradient(slow: Callable[[Float], float], x: Tensor, step: float = 1e-5) -> Float:
    """Return central differences of a slow version, one number at a time."""
    base = as64(x)
    grad = np.zeros_like(base)
    for place in np.ndindex(*base.shape):
        up, down = base.copy(), base.copy()
        up[place] += step
        down[place] -= step
        grad[place] = (slow(up) - slow(down)) / (2 * step)
    return grad


# --- strategies ------------------------------------------------------------------------------------

Strategy = TypeVar("Strategy", bound=DomainStrategy)
Feature = TypeVar("Feature", bound=ServerFeature)
Part = TypeVar("Part", bound=Phase)


#: Where the run's configuration has what tests of a strategy change.
_SECTIONS = dict.fromkeys(("participation", "max_value", "max_update", "max_images"), "federation") | {
    "domains": "dataset", "eval_batch": "images", "validation_fraction": "allocation", "label_mix": "shift",
}  # fmt: skip
_FACTS = frozenset(field.name for field in dataclasses.fields(ModelFacts))
_ENGINE = frozenset(("min_nodes", "node_timeout", "queues"))


@functools.cache
def _plain_config() -> RunConfig:
    return resolve({"experiment": "handwritten"})


def federation(**changes: Any) -> RunContext:
    """Return what a strategy knows of a run: one domain, three classes, features of two numbers.

    Changes are facts of the model, of the engine (``engine`` is its name), sections or keys of the configuration.
    """
    config = _plain_config()
    sections = {name: dict(getattr(config, name)) for name in {*_SECTIONS.values()}}
    sections["dataset"]["domains"] = ("a",)
    facts: dict[str, Any] = {"num_classes": 3, "feature_dim": 2}
    engine: dict[str, Any] = {"min_nodes": 1, "node_timeout": 1.0}
    whole: dict[str, Any] = {"rounds": 1, "seed": 0, "method": FrozenDict({"name": changes.pop("method", "")})}
    name, run_json = changes.pop("engine", "simulation"), changes.pop("run_json", "{}")
    for key, value in changes.items():
        place = facts if key in _FACTS else engine if key in _ENGINE else whole
        (sections[_SECTIONS[key]] if key in _SECTIONS else place)[key] = value
    for section, values in sections.items():
        whole[section] = getattr(config, section).model_copy(update=values)
    return RunContext(config.model_copy(update=whole), ModelFacts(**facts), Engine(name, **engine), run_json)


def server_feature(kind: type[Feature], **changes: Any) -> Feature:
    """Return a feature's side of the server, of a run with these changes (:func:`federation`)."""
    name = next(name for name in FEATURES if (half := FEATURES[name].server) and imported(half) is kind)
    return kind(name, federation(**changes), Params())


def phase(
    kind: type[Part], nodes: Sequence[Node] = (), *, server_round: int = 1, weights: ArrayRecord | None = None,
    method: Any = None, **more: Any,
) -> Part:  # fmt: skip
    """Return a part of a round as a feature sees it, in which nobody answers."""
    ignore = Mock(return_value=None)
    sent = ArrayRecord() if weights is None else weights
    result = RoundResult(server_round)
    return kind(result, method, tuple(nodes), list(nodes), sent, lambda questions: [], ignore, ignore, **more)


def scored_round(
    feature: ServerFeature, domains: Sequence[str], nodes: Sequence[Node], **more: Any
) -> tuple[Evaluation, Around, Scoring]:
    """Return an evaluation of a feature's questions, and what goes on around it."""
    scoring = phase(Scoring, nodes)
    around = Around([(feature.name, feature.on_scores(scoring))])
    scoring.evaluation = Evaluation(domains, nodes, extras=around.asked, **more)
    return scoring.evaluation, around, scoring


def merged(strategy: DomainStrategy[Any], updates: list[Update], weights: list[float], sent: ArrayRecord) -> Arrays:
    """Return what a round merges of updates, features included."""
    strategy._training = phase(Training, [update.node for update in updates], weights=sent)
    return decode(strategy.features.merge(updates, weights, strategy._training, strategy.merge))


def public_set_feature() -> PublicSet:
    """Return what holds nodes to one copy of the public set."""
    return server_feature(PublicSet)


def new_strategy(
    kind: type[Strategy], *, classes: int = 3, width: int = 2, personal: bool = False, rounds: int = 1, **params: Any
) -> Strategy:
    """Return the strategy of a method, whose own parameters are given; it keeps no checkpoints."""
    answer = federation(num_classes=classes, feature_dim=width, personal=personal, rounds=rounds)
    return kind(answer, kind.params_model(**params), lambda result, weights: None)


def node(index: int = 0, counts: Sequence[int] = (1, 1, 1), domain: str = "a", num_test: int = 0, **more: Any) -> Node:
    """Return a node of a simulation, with training images of each class."""
    fields: dict[str, Any] = {"node_id": 100 + index, "shared_test": True, "partition_id": index}
    return Node(index=index, domain=domain, class_counts=tuple(counts), num_test=num_test, **fields | more)


def update(prototypes: Any, counts: Sequence[int], index: int = 0) -> Update:
    """Return what a node sent that holds as many images of each class."""
    knowledge: Arrays = {"prototypes": np.array(prototypes, np.float32), "counts": np.array(counts, np.int64)}
    return Update(node(index, counts), ArrayRecord(), knowledge, max(sum(counts), 1), {})


BUFFER, COUNT = "bn.running_var", "bn.num_batches_tracked"


def with_buffers(seed: int) -> Arrays:
    """Return random weights with a BatchNorm's buffer and counter."""
    rng = np.random.default_rng(seed)
    made: Arrays = {"w": rng.normal(size=(3, 2)).astype(np.float32), "b": rng.normal(size=2).astype(np.float32)}
    return made | {BUFFER: rng.uniform(1, 2, 2).astype(np.float32), COUNT: np.array(10 * seed)}


def prototypes_of(server: DomainStrategy) -> dict[int, list[float]]:
    """Return the global prototype of each class that has one."""
    prototypes, classes = server.knowledge["prototypes"], server.knowledge["labels"]
    assert (str(prototypes.dtype), str(classes.dtype)) == ("float32", "int64")
    assert prototypes.shape == (len(classes), server.federation.feature_dim)
    assert classes.tolist() == sorted(set(classes.tolist()))
    return {int(k): row.tolist() for k, row in zip(classes, prototypes, strict=True)}


def check_knowledge(server: DomainStrategy, knowledge: Arrays, announced: int | Sequence[int] = 999) -> None:
    """Check what a node with so many images of each class contributes, as the strategy does."""
    result = server.federation
    counts = [announced] * result.num_classes if isinstance(announced, int) else announced
    check_contribution(knowledge, server.expected(), {"C": result.num_classes, "D": result.feature_dim}, counts, 1e6)


def check_accepted(of: DomainClient, kind: type[DomainStrategy], **params: Any) -> None:
    """Check that the server takes what a client contributed: what its method declares, of images that it has."""
    classes, width = of.model.num_classes, of.model.feature_dim
    server = new_strategy(kind, classes=classes, width=width, personal=True, **params)
    check_knowledge(server, of.contribution(), np.bincount(of.train_set.y, minlength=classes).tolist())


def ask(server_round: int = 1, trains: bool = True) -> Ask:
    """Return what a node is about to be asked."""
    return Ask(server_round, trains)


def after_rounds(server: DomainStrategy, *rounds: list[Update]) -> dict[int, list[float]]:
    """Merge what nodes sent, round after round; return the global prototypes."""
    for updates in rounds:
        server.merge_knowledge(updates)
    return prototypes_of(server)


@contextlib.contextmanager
def own_experiment(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: str, experiment: str
) -> Iterator[Path]:
    """Yield ``folder/own.yaml``, which names the file of code next to it; later tests know nothing of that file."""
    monkeypatch.setenv(plugins.ALLOWED, "")
    (folder / name).write_text(code)
    file = folder / "own.yaml"
    file.write_text(experiment)
    extensions.forget()
    yield file
    extensions.forget()


def until(done: Callable[[], bool], seconds: float = 30) -> bool:
    """Wait until something is so; tell whether it came to be."""
    deadline = time.monotonic() + seconds
    while not (reached := done()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return reached
