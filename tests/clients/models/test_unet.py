"""``unet:NAME``: maps as features, a decoder as classifier."""

import torch
from torch.nn import functional as F

from fedshift_clients.models import networks
from fedshift_clients.models.levels import level_features, levels_of
from fedshift_clients.models.stages import feature_stages, stage_ends

SMALL = "unet:small"


def test_features_are_all_maps_and_logits_are_as_large_as_the_images() -> None:
    model = networks.build(SMALL, 5, seed=0, size=48)
    features, logits = model(torch.randn(2, 3, 48, 48))
    assert features.shape == (2, model.feature_dim) == (2, 48 * 48 * (8 + 24 // 4 + 64 // 16))
    assert logits.shape == (2, 5, 48, 48)
    torch.autograd.backward(F.cross_entropy(logits, torch.zeros(2, 48, 48, dtype=torch.int64)))
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


def test_what_changes_the_map_of_a_stage_changes_what_the_decoder_is_given_of_it() -> None:
    model = networks.build(SMALL, 5, seed=0, size=32).eval()
    stages = feature_stages(model.encoder)
    assert stages is not None and stages.widths == (8, 24, 64)
    ends = stage_ends(model.encoder, stages)
    assert ends is not None
    x = torch.randn(2, 3, 32, 32)
    before = model.encoder(x)
    ends[0].register_forward_hook(lambda *_: torch.zeros(2, 8, 32, 32))
    with level_features(levels_of(model, "test")) as levels:
        after = model.encoder(x)
    assert [level.shape[1] for level in levels] == [8, 24, 64]
    assert before[:, : 8 * 32 * 32].any() and not after[:, : 8 * 32 * 32].any()
