"""FedSR on a node: terms of a sample, and the scores by samples or by the mean."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from slow_terms import softmax
from support import (
    C,
    D,
    as64,
    batch,
    drawn,
    features_of,
    image_set,
    new_client,
    rng,
)
from torch.nn import functional as F

from fedshift_clients.methods.fedsr import FedSRClient, conditional_information, length
from fedshift_clients.training.settings import ImageConfig
from fedshift_core.methods.fedsr import Length

client = partial(
    new_client, FedSRClient, train_set=image_set(16, classes=C), images=ImageConfig(crop_padding=2), epochs=1,
    batch_size=8,
)  # fmt: skip


def distribution(made: FedSRClient, x: torch.Tensor) -> tuple[Any, Any]:
    """Return mu and sigma by hand."""
    layer = made.model.gaussian
    mu, raw = np.split(features_of(made.model, x) @ as64(layer.weight).T + as64(layer.bias), 2, axis=1)
    return mu, np.log1p(np.exp(raw))


def logits(made: FedSRClient, z: Any) -> Any:
    head = made.model.classifier
    return z @ as64(head.weight).T + as64(head.bias)


@pytest.mark.parametrize(("z_dim", "l2r"), [(None, "norm"), (10, "squared")])
def test_terms_are_of_a_sample_of_the_features(z_dim: int | None, l2r: Length) -> None:
    made = client({"alpha_l2r": 0.2, "alpha_cmi": 0.03, "l2r": l2r, "z_dim": z_dim})
    with torch.no_grad():
        for place, parameter in enumerate(made.model.reference.parameters()):
            parameter.add_(0.3 * drawn(place, parameter.numel()).view_as(parameter))
    made.model.train()
    made.start_round(2)
    given, held = batch(5, classes=C), made.model.reference
    mu, sigma = (torch.from_numpy(part).float() for part in distribution(made, given.x))
    noise = rng(int(torch.randint(2**62, (), generator=made.torch_rng("fedsr", 2))))
    z, of_class = (
        mu + sigma * torch.randn(mu.shape, generator=noise),
        (held.mean[given.y], F.softplus(held.deviation)[given.y]),
    )
    wanted = {
        "ce": F.cross_entropy(made.model.classifier(z), given.y), "l2r": 0.2 * length(z, l2r),
        "cmi": 0.03 * conditional_information(held.scale * mu, held.scale * sigma, *of_class),
    }  # fmt: skip
    torch.testing.assert_close(made.loss(given), wanted, rtol=1e-4, atol=1e-5)


def test_scored_by_samples_or_by_the_mean() -> None:
    made, mean, x = client({"test_samples": 7}), client({"test": "mean"}), batch(6, classes=C).x
    mu, sigma = distribution(made, x)
    made.model.eval(), mean.model.eval()
    noise = as64(made._test_noise())
    assert noise.shape == (7, D)
    wanted = np.log(np.mean([softmax(logits(made, mu + sigma * eps)) for eps in noise], axis=0))
    whole = as64(made.predict(x))
    np.testing.assert_allclose(whole, wanted, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(as64(mean.predict(x)), logits(mean, distribution(mean, x)[0]), rtol=1e-3, atol=1e-4)
    # The score of an image depends on no other, and can be repeated.
    alone = as64(torch.cat([made.predict(image) for image in x.split(1)]))
    np.testing.assert_allclose(whole, alone, rtol=1e-4, atol=1e-5)
