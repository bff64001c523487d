"""FedProc on a node: both terms and their shares against NumPy, and the way back to FedAvg."""

from functools import partial

import numpy as np
import pytest
import torch
from support import (
    batch,
    begun,
    global_prototypes,
    new_client,
)

from fedshift_clients.methods.fedproc import FedProcClient

client = partial(new_client, FedProcClient)
known = partial(global_prototypes, (0, 2, 3))  # class 1 has no prototype


# --- the loss --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "tau"), [(1.0, 0.5), (0.75, 0.1), (0.01, 0.5)])
def test_both_terms_against_numpy(alpha: float, tau: float) -> None:
    made, given = begun(client({"tau": tau}, known(), scalars={"alpha": alpha})), batch()
    y, g = given.y.tolist(), known()["prototypes"].astype(np.float64)
    with torch.no_grad():
        z, logits = (part.numpy().astype(np.float64) for part in made.model(given.x))
    contrast, entropy = [], []
    for i in range(len(y)):
        s = [float(z[i] @ row) / float(np.linalg.norm(z[i]) * np.linalg.norm(row)) for row in g]
        place = {0: 0, 2: 1, 3: 2}.get(y[i])  # class 1 has no prototype: left out
        if place is not None:
            contrast.append(-np.log(np.exp(s[place] / tau) / sum(np.exp(v / tau) for v in s)))
        entropy.append(-np.log(np.exp(logits[i][y[i]]) / np.exp(logits[i]).sum()))
    terms = {name: float(term.detach()) for name, term in made.loss(given).items()}
    assert list(terms) == ["ce", "gpc"]
    assert terms["gpc"] == pytest.approx(alpha * np.mean(contrast), rel=1e-4)
    assert terms["ce"] == pytest.approx((1 - alpha) * np.mean(entropy), rel=1e-4, abs=1e-12)
