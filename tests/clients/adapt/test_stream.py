"""A test set as a stream: its order, its batches, what is put back, and what an adaptation needs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from method_cases import domain_heads
from refusals import refused
from support import image_set, new_client, normalised, same, shared, whole
from torch import Tensor

from fedshift_clients.adapt.eata import EATA, EATAAdaptation
from fedshift_clients.adapt.params import EATAParams, StreamParams, T3AParams, TentParams
from fedshift_clients.adapt.stream import Predictor, Stream
from fedshift_clients.adapt.t3a import T3A, T3AAdaptation
from fedshift_clients.adapt.tent import Tent, TentAdaptation
from fedshift_clients.base import DomainClient
from fedshift_clients.methods.copa import CopaClient
from fedshift_core.errors import ConfigError
from fedshift_datasets.base import ImageSet

TEST = image_set(23, seed=5)
ALL: dict[str, Callable[..., Stream]] = {
    "tent": lambda **own: TentAdaptation(TentParams(**{"batch_size": 8} | own)),
    "eata": lambda **own: EATAAdaptation(EATAParams(**{"batch_size": 8, "redundancy": 1.0} | own)),
    "t3a": lambda **own: T3AAdaptation(T3AParams(**{"batch_size": 8} | own)),
}


def client(adaptation: Stream, model: str = "cnn_bn", **options: Any) -> DomainClient:
    made = new_client(DomainClient, test_set=lambda domain: TEST, adaptation=adaptation, model=model, **options)
    return taken(made)


def taken(made: DomainClient) -> DomainClient:
    """Return a client that has just received weights with which classes are not all the same."""
    rng = np.random.default_rng(4)
    given = [a if a.dtype == np.int64 else (a + rng.normal(0, 0.05, a.shape)).astype(np.float32) for a in shared(made)]
    made.take(given)
    return made


class Noting(Stream):
    """Predicts the place of an image in the stream, and notes the sizes of the batches."""

    name = "noting"

    def predictor(self, client: DomainClient) -> Predictor:
        self.sizes: list[int] = []

        def run(x: Tensor) -> Tensor:
            self.sizes.append(len(x))
            return torch.arange(sum(self.sizes))[-len(x) :, None].repeat(1, 4).float()

        return run


def predicted(made: DomainClient, images: ImageSet = TEST) -> Tensor:
    """Return the logits by which a test set is scored."""
    seen: list[Tensor] = []
    score = made.score

    def watched(part: ImageSet, predict: Predictor | None = None) -> tuple[int, float]:
        if made._predictor is not None:
            seen.extend(made.classify(x).clone() for x, _ in made.plain_batches(part))
        return score(part, predict)

    vars(made)["score"] = watched
    try:
        made.score_test(images)
    finally:
        del vars(made)["score"]
    return torch.cat(seen)


@pytest.mark.parametrize(
    ("size", "number", "batches"),
    [(8, 23, [8, 8, 7]), (11, 23, [11, 10, 2]), (64, 23, [23]), (4, 1, [1]), (2, 5, [2, 3])],
)
def test_images_come_in_the_order_of_the_test_set(size: int, number: int, batches: list[int]) -> None:
    noting = Noting(StreamParams(batch_size=size, order="test"))
    predictions = predicted(client(noting), TEST.select(np.arange(number)))
    assert predictions[:, 0].tolist() == list(range(number))
    assert noting.sizes == batches  # the last takes one from that before it, or joins it, if it would be alone


@pytest.mark.parametrize("name", ALL)
def test_a_node_predicts_as_the_adaptation_does_on_the_same_batches(name: str) -> None:
    made, other = client(ALL[name](order="test")), client(ALL[name]())
    x, clean = (normalised(images, other.setup.images) for images in (TEST, other.train_set))
    model = other.model.eval()
    run: Predictor = {
        "tent": lambda: Tent(model, other.predict),
        "eata": lambda: EATA(model, other.predict, EATAParams(batch_size=8, redundancy=1.0), list(clean.split(8))),
        "t3a": lambda: T3A(model.classifier, other.forward),
    }[name]()
    torch.testing.assert_close(predicted(made), torch.cat([run(part) for part in x.split(8)]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ALL)
def test_nothing_stays_and_labels_do_not_matter(name: str) -> None:
    made = client(ALL[name]())
    before, learns = whole(made), [p.requires_grad for p in made.model.parameters()]
    first = predicted(made)
    assert same(before, whole(made)) and made._predictor is None
    assert learns == [p.requires_grad for p in made.model.parameters()]
    assert torch.equal(first, predicted(made, ImageSet(TEST.x, (TEST.y + 1) % 3)))  # begins anew, whatever labels are
    assert made.score_test(TEST).others == {"before-adaptation": made.score(TEST)[0]}
    assert not torch.allclose(first, torch.cat([made.predict(x) for x, _ in made.plain_batches(TEST)]))


def test_where_a_method_classifies_in_its_own_way_that_says_which_class_a_feature_joins() -> None:
    """COPA's two heads: one never sees the class 1, so what they say together is not what the model's own does."""
    sent = domain_heads(2)
    sent["heads/bias"] = np.array([[0.0] * 4, [0, -99, 0, 0]], np.float32)
    made = new_client(CopaClient, knowledge=sent, test_set=lambda domain: TEST, adaptation=ALL["t3a"](batch_size=64))
    made.scalars = {"head": 0}
    predictions = predicted(taken(made))
    made.model.eval()
    x, own = normalised(TEST, made.setup.images), (made.model.classifier, made.forward)
    torch.testing.assert_close(predictions, T3A(*own, made.predict)(x), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(predictions, T3A(*own)(x), atol=1e-2)


def test_a_classifier_without_a_linear_layer_is_refused() -> None:
    made = client(ALL["t3a"]())
    made.model.classifier = torch.nn.Identity()  # type: ignore[assignment]
    with refused(ConfigError, "adapt.name=t3a", "cnn_bn", "Identity"):
        T3AAdaptation(T3AParams()).check_model(made.model, made.setup.model)


def test_in_a_mixed_order_each_image_keeps_its_own_prediction() -> None:
    result = predicted(client(Noting(StreamParams())))[:, 0].tolist()
    assert sorted(result) == list(range(23))
    assert result != sorted(result)
    assert result == predicted(client(Noting(StreamParams())))[:, 0].tolist()
