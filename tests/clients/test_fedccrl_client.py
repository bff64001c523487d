"""FedCCRL on a node: styles of other nodes' images, AugMix, its terms and their weights."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from slow_terms import styles, with_style
from support import as64, batch, begun, drawn, new_client
from torchvision.transforms import v2  # type: ignore[import-untyped]

from fedshift_clients.images.augmix import augmix
from fedshift_clients.losses.contrast import supervised_contrast
from fedshift_clients.methods import fedccrl as terms
from fedshift_clients.methods.fedccrl import FedCCRLClient, drawn_places
from fedshift_core.wire.image_styles import ImageStyles

client = partial(new_client, FedCCRLClient)
STYLES = ImageStyles(
    np.array([0, 0, 1, 1, 1]), np.linspace(0.1, 0.9, 15, dtype=np.float32).reshape(5, 3),
    np.linspace(0.05, 0.3, 15, dtype=np.float32).reshape(5, 3),
)  # fmt: skip


def with_styles(styles: ImageStyles | None = STYLES, **params: Any) -> FedCCRLClient:
    made = client(params)
    made.image_styles = styles
    return begun(made)


def test_an_image_takes_the_style_of_another_nodes_image() -> None:
    made, x, draws = with_styles(alpha=0.5, use_augmix=False), batch(6).x, np.random.default_rng()
    draws.bit_generator.state = made._draws.bit_generator.state
    draws.random()
    others, images = np.flatnonzero(STYLES.nodes != made.setup.index), made.setup.images
    rows = others[drawn_places(len(others), 6, draws)]
    lam = draws.beta(0.5, 0.5, 6)[:, None]
    theirs = (STYLES.mean[rows] - images.mean) / images.std, np.sqrt((STYLES.std[rows] / images.std) ** 2 + 1e-6)
    mixed = [lam * own + (1 - lam) * other for own, other in zip(styles(as64(x)), theirs, strict=True)]
    np.testing.assert_allclose(as64(made.changed(x)), with_style(as64(x), *mixed), atol=1e-4)


def test_without_other_nodes_styles_or_with_probability_0_the_style_stays() -> None:
    x, own_alone = batch(4).x, replace(STYLES, nodes=np.full(5, client().setup.index))
    for given, params in ((None, {}), (STYLES, {"probability": 0.0}), (own_alone, {}), (STYLES, {})):
        unchanged = torch.equal(with_styles(given, use_augmix=False, **params).changed(x), x)
        assert unchanged is (given is not STYLES or bool(params))


def test_augmix_is_torchvisions_on_bytes_and_leaves_the_global_generator_as_it_is() -> None:
    x = (drawn(0, 4, 3, 16, 16).abs() * 90).clamp(0, 255).to(torch.uint8)
    before = torch.get_rng_state()
    got, again, other = (augmix(x, seed) for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(again, got) and not torch.equal(other, got)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        assert torch.equal(v2.AugMix()(x), got)


def test_terms_are_those_of_the_images_and_two_copies() -> None:
    given, (made, again) = batch(), (with_styles(lambda_align=2.0, lambda_js=3.0, tau=0.3) for _ in range(2))
    with torch.no_grad():
        z, own = again.forward(given.x)
        (z1, one), (z2, two) = (again.forward(again.changed(given.x)) for _ in range(2))
        ce = torch.nn.functional.cross_entropy
        wanted = {
            "ce": ce(own, given.y), "copies": ce(one, given.y) + ce(two, given.y),
            "align": sum(supervised_contrast(copy, z, given.y, 0.3, itself=True) for copy in (z1, z2)),
            "js": 3 * terms.divergence([own, one, two]),
        }  # fmt: skip
    torch.testing.assert_close({name: value.detach() for name, value in made.loss(given).items()}, wanted)


@pytest.mark.parametrize("term", ["align", "js"])
def test_a_weight_of_zero_takes_exactly_its_term_away(term: str) -> None:
    whole, without = (with_styles(**params).loss(batch()) for params in ({}, {f"lambda_{term}": 0.0}))
    assert whole.keys() - without.keys() == {term}
    assert all(torch.equal(value, whole[name]) for name, value in without.items())
