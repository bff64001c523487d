"""FedSR on a node: terms of a sample, and the scores by samples or by the mean."""

from typing import Any

import numpy as np
import pytest
import torch
from support import (
    C,
    D,
    as64,
    batch,
    features_of,
    image_set,
    new_client,
    weights,
)
from torch.nn import functional as F

from fedshift_clients.methods.fedsr import FedSRClient, conditional_information, length
from fedshift_clients.training.settings import ImageConfig
from fedshift_core.methods.fedsr import Length

TRAIN: dict[str, Any] = {"images": ImageConfig(crop_padding=2), "epochs": 1, "batch_size": 8}


def client(params: dict[str, Any] | None = None, **options: Any) -> FedSRClient:
    return new_client(FedSRClient, params, **{"train_set": image_set(16, classes=C)} | TRAIN | options)


def distribution(made: FedSRClient, x: torch.Tensor) -> tuple[Any, Any]:
    """Return mu and sigma by hand."""
    state = {name: array.astype(np.float64) for name, array in weights(made).items()}
    raw = features_of(made.model, x) @ state["gaussian.weight"].T + state["gaussian.bias"]
    width = raw.shape[1] // 2
    return raw[:, :width], np.log1p(np.exp(raw[:, width:]))


def logits(made: FedSRClient, z: Any) -> Any:
    state = weights(made)
    return z @ state["classifier.weight"].T.astype(np.float64) + state["classifier.bias"]


@pytest.mark.parametrize(("z_dim", "l2r"), [(None, "norm"), (10, "squared")])
def test_terms_are_of_a_sample_of_the_features(z_dim: int | None, l2r: Length) -> None:
    made = client({"alpha_l2r": 0.2, "alpha_cmi": 0.03, "l2r": l2r, "z_dim": z_dim})
    with torch.no_grad():
        for place, parameter in enumerate(made.model.reference.parameters()):
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(place)))
    made.model.train()
    made.start_round(2)
    given = batch(5, classes=C)
    terms = made.loss(given)
    mu, sigma = (torch.from_numpy(part).float() for part in distribution(made, given.x))
    rng = torch.Generator().manual_seed(int(torch.randint(2**62, (), generator=made.torch_rng("fedsr", 2))))
    z, held = mu + sigma * torch.randn(mu.shape, generator=rng), made.model.reference
    m, s = held.mean[given.y], F.softplus(held.deviation)[given.y]
    wanted = {
        "ce": F.cross_entropy(made.model.classifier(z), given.y), "l2r": 0.2 * length(z, l2r),
        "cmi": 0.03 * conditional_information(held.scale * mu, held.scale * sigma, m, s),
    }  # fmt: skip
    assert set(terms) == set(wanted)
    for name, value in wanted.items():
        torch.testing.assert_close(terms[name], value, rtol=1e-4, atol=1e-5)


def test_scored_by_samples_or_by_the_mean() -> None:
    made, mean = client({"test_samples": 7}), client({"test": "mean"})
    x = batch(6, classes=C).x
    mu, sigma = distribution(made, x)
    made.model.eval(), mean.model.eval()
    noise = as64(made._test_noise())
    assert noise.shape == (7, D)
    probabilities = []
    for eps in noise:
        scores = logits(made, mu + sigma * eps)
        probabilities.append(np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True))
    with torch.no_grad():
        np.testing.assert_allclose(as64(made.predict(x)), np.log(np.mean(probabilities, axis=0)), rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(as64(mean.predict(x)), logits(mean, distribution(mean, x)[0]), rtol=1e-3, atol=1e-4)
        # The score of an image depends on no other, and can be repeated.
        whole, alone = made.predict(x), torch.cat([made.predict(x[i : i + 1]) for i in range(6)])
    np.testing.assert_allclose(whole.numpy(), alone.numpy(), rtol=1e-4, atol=1e-5)
