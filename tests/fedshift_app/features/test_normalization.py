"""Images normalised by statistics of nodes: against NumPy, what is refused, and runs."""

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from refusals import refused
from support import INDEX, SEED, InlineRun, Run, fedavg, image_set

from fedshift.export import saving
from fedshift.lab.pages.report import predictions
from fedshift.run import reading
from fedshift_app.config.resolving import resolve
from fedshift_app.features.normalization.node import HARMONISED, ByNodes
from fedshift_app.features.statistics import server as statistics_feature
from fedshift_app.node import requests
from fedshift_app.node.data import Place
from fedshift_clients.base import DomainClient
from fedshift_clients.features import of
from fedshift_clients.training.settings import ImageConfig
from fedshift_core.errors import ConfigError, FedShiftError
from fedshift_core.seeding import torch_seed
from fedshift_core.wire.site_images import FederationImages
from fedshift_datasets.base import ImageSet, Source
from fedshift_datasets.quality import pixel_statistics

DOMAINS = ("a", "b", "c")
ON = "images.normalization=fedrdn statistics.share=nodes"
SHORT = "train.epochs=1 allocation.share=0.1 dataset.domains=[scan,sketch]"


def statistics(nodes: tuple[int, ...], domains: tuple[int, ...]) -> FederationImages:
    rng = np.random.default_rng(7)
    mean, variance, std = (rng.uniform(0.1, 0.2 + place / 3, (len(nodes), 3)) for place in range(3))
    return FederationImages(np.array(nodes), np.array(domains), mean, variance, std)


def client(images: ImageSet, way: str = "fedrdn", **more: Any) -> DomainClient:
    made = fedavg(train_set=images, images=ImageConfig(normalization=way, eval_batch=4, **more))
    made.normalizer = ByNodes(made, DOMAINS)
    made.federation_images = statistics((0, INDEX, INDEX + 3), (0, 1, 1))
    made.server_round = 5
    return made


def order_of(images: int) -> NDArray[Any]:
    """Return the order in which the images of an epoch come."""
    return torch.randperm(images, generator=torch.Generator().manual_seed(0)).numpy()


def plain(made: DomainClient, images: ImageSet) -> NDArray[Any]:
    """Return images as they are scored."""
    return np.concatenate([x.numpy().copy() for x, _ in made.plain_batches(images)])


def by_hand(x: NDArray[Any], mean: NDArray[Any], std: NDArray[Any]) -> Any:
    """Normalise images (B, H, W, 3) by (B or 1, 3)."""
    out = (x / 255 - mean[:, None, None]) / np.maximum(std, 1 / 255)[:, None, None]
    return out.transpose(0, 3, 1, 2)


def epoch(made: DomainClient, views: int = 1) -> list[Any]:
    order, first, second = (torch.Generator().manual_seed(i) for i in range(3))
    return [
        (batch.x.numpy().copy(), None if batch.second is None else batch.second.numpy().copy())
        for batch in made.augmented_batches(made.train_set, 5, views, order, first, second)
    ]


@pytest.mark.parametrize("draw", ["image", "batch"])
def test_images_are_normalised_by_nodes_that_are_drawn(draw: str) -> None:
    """As in the authors' code, for a batch mean and deviation are drawn apart."""
    images = image_set(12, 8)
    made = client(images, normalization_draw=draw)
    rng = torch.Generator().manual_seed(torch_seed(SEED, "normalization", INDEX, 5))
    of_all, apart = made.federation_images, draw == "image"
    assert of_all is not None
    for start, (x, _) in zip((0, 5, 10), epoch(made), strict=True):
        rows = torch.randint(3, (2, 1) if draw == "batch" else (1, len(x)), generator=rng).numpy()
        apart |= bool(rows[0][0] != rows[-1][0])
        order = order_of(12)[start : start + len(x)]
        wanted = by_hand(images.x[order], of_all.mean[rows[0]], of_all.image_std[rows[-1]])
        np.testing.assert_allclose(x, wanted, atol=2e-5)
    assert apart


def test_two_views_have_draws_of_their_own_and_a_round_repeats() -> None:
    made = client(image_set(12, 8))
    first = epoch(made, 2)
    assert any(not np.array_equal(x, second) for x, second in first)
    made.normalizer.restart(made.server_round)
    np.testing.assert_equal(epoch(made, 2), first)
    assert any(not np.array_equal(x, y) for (x, _), (y, _) in zip(first, epoch(made, 2), strict=True))


def test_images_as_they_are_go_by_the_node_the_domain_or_the_federation() -> None:
    images = image_set(6, 8)
    made = client(images)
    of_all = made.federation_images
    assert of_all is not None

    def seen() -> NDArray[Any]:
        return plain(made, images)

    def wanted(rows: list[int]) -> NDArray[Any]:
        return by_hand(images.x, of_all.mean[rows].mean(0)[None], of_all.image_std[rows].mean(0)[None])

    np.testing.assert_allclose(seen(), wanted([1]), atol=2e-5)  # its own row
    for domain, rows in (("a", [0]), ("b", [1, 2]), ("c", [0, 1, 2])):
        with made.of_domain(domain):
            np.testing.assert_allclose(seen(), wanted(rows), atol=2e-5)
    np.testing.assert_allclose(seen(), wanted([1]), atol=2e-5)
    made.federation_images = statistics((0,), (0,))  # it tells nothing, and goes by what it sees itself
    numbers = pixel_statistics.of(images.x, 16)
    np.testing.assert_allclose(seen(), by_hand(images.x, numbers.mean[None], numbers.image_std[None]), atol=2e-5)


def test_harmonised_images_of_each_node_have_mean_and_deviation_of_the_federation() -> None:
    rng, y = np.random.default_rng(3), np.arange(6)
    sets = [ImageSet(rng.integers(low, high, (6, 8, 8, 3), np.uint8), y) for low, high in ((0, 90), (99, 255))]
    numbers = [pixel_statistics.of(images.x, 16) for images in sets]
    mean, variance, std = (np.array([getattr(n, name) for n in numbers]) for name in ("mean", "variance", "image_std"))
    middle, spread = mean.mean(axis=0), np.sqrt(variance.mean(axis=0))
    for place, images in enumerate(sets):
        made = client(images, HARMONISED)
        made.federation_images = FederationImages(np.array([INDEX, INDEX + 1]), np.arange(2), mean, variance, std)
        harmonised = (images.x / 255 - mean[place]) * spread / np.sqrt(variance[place]) + middle
        np.testing.assert_allclose(harmonised.mean(axis=(0, 1, 2)), middle, atol=1e-9)
        np.testing.assert_allclose(harmonised.std(axis=(0, 1, 2)), spread, atol=1e-9)
        fixed = (np.array([numbers]) for numbers in (made.setup.images.mean, made.setup.images.std))
        as_fixed = functools.partial(by_hand, **dict(zip(("mean", "std"), fixed, strict=True)))
        wanted = as_fixed(255 * harmonised)
        # A domain that no node holds goes by all, so that nothing is to be harmonised.
        for domain, expected in (("ab"[place], wanted), ("c", as_fixed(images.x))):
            with made.of_domain(domain):
                np.testing.assert_allclose(plain(made, images), expected, atol=2e-5)
        if place == 0:
            ((trained, _),) = epoch(made)
            np.testing.assert_allclose(trained, wanted[order_of(6)], atol=2e-5)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("images.normalization=harmonised", "statistics.share=nodes"),
        ("images.normalization=fedrdn", "statistics.share=nodes"),
        ("images.normalization_draw=batch", "images.normalization=fixed"),
        (f"{ON} model.freeze=encoder model.precompute=on images.crop_padding=0", "model.precompute=off"),
        (f"{ON} privacy.name=local-dp", "privacy.name=local-dp"),
        (f"{ON} federation.secure_sums=on", "statistics.share=nodes"),
    ],
)
def test_what_does_not_fit_is_refused(given: str, named: str) -> None:
    with refused(ConfigError, named):
        resolve({"set": given})


def test_a_message_to_train_without_statistics_is_refused() -> None:
    config = resolve({"set": ON})
    given = {"server-round": 1, "node-index": 0, "engine": "simulation", "run": "{}"}
    where = Place(config.dataset.domains[0], 0, 4, Source(None), shared=True, threads=1)
    why = requests.NodeRequest.of("train", given, config, where)
    assert of(config).refuse(why) == "images.normalization=fedrdn: the message lacks site-statistics"


def as_reported(run: Run) -> FederationImages:
    """Check that a report scores a run's model as the run did; return the statistics of its nodes."""
    record = reading.read(run.folder)
    assert record.checkpoint is not None
    of_all = statistics_feature.federation_images(record.checkpoint.moments, record.config.dataset.domains)
    assert of_all is not None
    scored = {domain: view.accuracy for domain, view in predictions.look(record, None, None).views.items()}
    assert scored == pytest.approx(run.rounds[-1]["accuracy"])
    return of_all


def test_a_run_is_resumed_with_the_same_bits_reported_and_saved(run_inline: InlineRun) -> None:
    more = f"{SHORT} images.crop_padding=2 images.flip=true images.views=2 evaluate.client_models=last evaluate.last=1"
    keys: dict[str, Any] = {"nodes": 2, "method": "fedrdn", "set": f"{more} model.name=cnn_bn"}
    whole, part = (run_inline(rounds=rounds, **keys) for rounds in (2, 1))
    run_inline("", nodes=2, resume=str(part.folder), rounds=2)
    assert part.results["weights_sha256"] == whole.results["weights_sha256"]
    assert [line["accuracy"] for line in part.rounds][1:] == [line["accuracy"] for line in whole.rounds][1:]
    wanted = saving.Wanted(whole.folder, "safetensors")
    with refused(FedShiftError, "--node N"):
        saving.save(wanted)
    _, made = saving.save(dataclasses.replace(wanted, node=1, output=whole.folder / "model"))
    of_all = as_reported(whole)
    assert made.mean == pytest.approx(of_all.mean[1])
    assert made.std == pytest.approx(of_all.image_std[1])
