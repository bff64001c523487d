"""FedTHE on a node: two phases on the received body, the score of each image, and what is put back."""

from functools import partial
from typing import Any

import numpy as np
import torch
from slow_terms import check, cosines, cross_entropy, softmax
from support import (
    D,
    Float,
    as64,
    barred_images,
    changed,
    check_accepted,
    drawn,
    features_of,
    fit,
    labels,
    new_client,
    normalised,
    numerical_gradient,
    parts_of,
    same,
    shared,
    terms_in,
    weights,
)  # fmt: skip
from torch import Tensor

from fedshift_clients.methods import fedthe as eq
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
        near, far = ((0.1 * part + 0.9 * averages - mean).norm(dim=1) for mean in means)
        wanted.append(equations.mixed(equations.interpolation((g, p), (near, far), steps=5, lr=10 * 0.05), g, p))
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


# --- equations ----------------------------------------------------------------------------------------------


ROWS, CLASSES, WIDTH = 6, 4, 5


def slow_objective(e: Float, g: Float, p: Float, far_g: Float, far_p: Float) -> Any:
    q = softmax(e[:, :1] * g + e[:, 1:] * p)
    rho = np.diag(cosines(softmax(g), softmax(p)))
    return (-rho * (q * np.log(q)).sum(1) + (1 - rho) * (e * np.stack([far_g, far_p], axis=1)).sum(1)).mean()


def given(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    scores = drawn(seed, ROWS, CLASSES), 2 * drawn(seed + 1, ROWS, CLASSES)
    return *scores, drawn(seed + 2, ROWS).abs(), drawn(seed + 3, ROWS).abs()


def test_balanced_cross_entropy_is_that_of_the_shifted_scores() -> None:
    logits, y, counts = drawn(0, ROWS, CLASSES), labels(0, ROWS, CLASSES), torch.tensor([5, 0, 2, 9])
    check(
        lambda x: eq.balanced_cross_entropy(x, y, counts),
        lambda x: cross_entropy(x + np.log(np.array(counts) + 1), y),
        logits,
    )


def test_the_history_goes_on_from_batch_to_batch_and_a_first_image_does_not_move_it() -> None:
    z, alpha = drawn(3, 7, WIDTH), 0.3
    slow, result = [as64(z[0])], list[Tensor]()
    for i in range(1, 7):  # in batches of 3: images 3 and 6 are the first of theirs
        slow.append(slow[-1] if i % 3 == 0 else alpha * as64(z[i]) + (1 - alpha) * slow[-1])
    for part in z.split(3):
        result.append(eq.history(part, result[-1][-1] if result else None, alpha))
    np.testing.assert_allclose(as64(torch.cat(result)), slow, rtol=1e-5, atol=1e-6)


def test_the_objective_and_its_gradient() -> None:
    def objective(e: Tensor, g: Tensor, p: Tensor, far_g: Tensor, far_p: Tensor) -> Tensor:
        return eq.objective(e, (g, p), (far_g, far_p))

    check(objective, slow_objective, drawn(9, ROWS, 2).softmax(dim=1), *given())


def test_interpolation_is_adam_by_hand_from_equal_weights() -> None:
    parts, raw, m, v = given(20), np.ones((ROWS, 2)), np.zeros(()), np.zeros(())
    others = [as64(part) for part in parts]
    for step in range(1, 4):
        grad = numerical_gradient(lambda x: float(slow_objective(softmax(x), *others)), torch.from_numpy(raw))
        m, v = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * grad**2
        raw = raw - 0.1 * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
    pairs = parts[:2], parts[2:]
    np.testing.assert_allclose(as64(eq.interpolation(*pairs, steps=3, lr=0.1)), softmax(raw), atol=1e-4)
    np.testing.assert_array_equal(as64(eq.interpolation(*pairs, steps=0, lr=0.1)), np.full((ROWS, 2), 0.5))
