"""FedTHE on a node: two phases on the received body, the score of each image, and what is put back."""

from functools import partial
from typing import Any

import numpy as np
import torch
from support import (
    D,
    barred_images,
    changed,
    check_accepted,
    features_of,
    fit,
    new_client,
    normalised,
    parts_of,
    same,
    shared,
    terms_in,
    weights,
)  # fmt: skip

from fedshift_clients.methods import fedthe as equations
from fedshift_clients.methods.fedthe import FedTHEClient
from fedshift_clients.training.settings import ImageConfig
from fedshift_core.arrays import Arrays
from fedshift_core.wire.names import DOMAINS, SERVER_ROUND
from fedshift_strategies.methods.fedthe import FedTHEStrategy

PLAIN = ImageConfig(eval_batch=7)


client = partial(new_client, FedTHEClient, epochs=1, images=PLAIN)


def everybody(seed: int = 1) -> Arrays:
    return {"feature": np.random.default_rng(seed).uniform(size=D).astype(np.float32)}


def logits_of(made: FedTHEClient, images: Any) -> torch.Tensor:
    """Return what an evaluation classifies images by, in their order."""
    collected, predict = list[torch.Tensor](), made.predict
    vars(made)["predict"] = lambda x: collected.append(predict(x)) or collected[-1]
    made.score_test(images)
    del vars(made)["predict"]
    return torch.cat(collected)


def test_the_personal_head_trains_first_on_the_received_body_then_body_and_global_head() -> None:
    made = client(model="cnn_bn")
    before = weights(made)
    made.start_round(1)
    first, second = made.phases(1)
    made._train(1, [first])
    between = weights(made)
    assert parts_of(changed(before, between)) == {"personal_head"}
    made._train(1, [second])
    assert parts_of(changed(between, weights(made))) == {"encoder", "classifier"}
    assert parts_of(made.shared_names) == {"encoder", "classifier"}


def test_it_contributes_the_mean_feature_of_the_received_body_and_keeps_its_head() -> None:
    made = client()
    wanted = features_of(made.model, normalised(made.train_set, made.setup.images)).mean(axis=0)
    _, metrics = fit(made)
    told = made.contribution()
    np.testing.assert_allclose(told["feature"], wanted, rtol=1e-4, atol=1e-6)
    check_accepted(made, FedTHEStrategy)
    found = list(told), list(made.memory), terms_in(metrics)
    assert found == (["feature"], ["model/personal_head.weight"], ["personal", "ce"])


def test_a_score_is_that_of_both_heads_weighed_as_the_equations_say() -> None:
    """The personal head and the node's mean feature are those of the next round's first phase."""
    made, ahead = (client({"steps": 5}, everybody()) for _ in range(2))
    test = barred_images(17, seed=4)
    fit(made)
    sent = shared(made)
    made.evaluate(sent, {SERVER_ROUND: 1, DOMAINS: []})
    result = logits_of(made, test)

    ahead.memory, ahead.server_round = dict(made.memory), 2
    ahead.take(sent)
    ahead.start_round(2)
    ahead._train(2, ahead.phases(2)[:1])
    ahead.model.eval()
    with torch.no_grad():
        z, by_global = ahead.model(normalised(test, PLAIN))
        by_personal = ahead.model.get_submodule("personal_head")(z)
        own = ahead.model(normalised(ahead.train_set, PLAIN))[0].mean(dim=0)
    last, wanted, means = None, [], (torch.from_numpy(everybody()["feature"]), own)
    for part, g, p in zip(z.split(7), by_global.split(7), by_personal.split(7), strict=True):
        averages = equations.history(part, last, 0.1)
        last = averages[-1]
        far = ((0.1 * part + 0.9 * averages - mean).norm(dim=1) for mean in means)
        wanted.append(equations.mixed(equations.interpolation(g, p, *far, steps=5, lr=10 * 0.05), g, p))
    torch.testing.assert_close(result, torch.cat(wanted), rtol=1e-4, atol=1e-4)


def test_everything_is_put_back_after_a_score() -> None:
    made, untouched = (client(knowledge=everybody(), model="cnn_bn") for _ in range(2))
    for one in (made, untouched):
        fit(one)
    sent, memory = shared(made), {name: array.copy() for name, array in made.memory.items()}
    made.take(sent)
    before = weights(made)
    made.score_test(barred_images(12))
    assert not changed(before, weights(made)) and not changed(memory, dict(made.memory))
    assert same(fit(made, 2, sent)[0], fit(untouched, 2, sent)[0])
