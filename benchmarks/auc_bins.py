"""How far the AUC from a histogram may be from the exact one, and is: ``python benchmarks/auc_bins.py``."""

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

from fedshift_app.features.figures import show as figures
from fedshift_app.features.figures.node import count

IMAGES, RUNS = 1000, 5


def main() -> None:
    """Print, by spread of the logits and number of classes, ``auc_within`` and the largest true error, in points."""
    rng = np.random.default_rng(0)
    print("spread classes  auc_within      error")
    for spread in (0.3, 1, 3, 10):
        for classes in (2, 5, 10, 50):
            within, errors = [], []
            for _ in range(RUNS):
                y = rng.integers(0, classes, IMAGES)
                logits = rng.normal(size=(IMAGES, classes)) * spread
                logits[np.arange(IMAGES), y] += spread
                scores = torch.tensor(logits, dtype=torch.float32)
                values = figures.of(count(scores, scores.argmax(1), torch.tensor(y), classes))
                p = scores.double().softmax(1).numpy()
                exact = np.mean([roc_auc_score(y == kind, p[:, kind]) for kind in range(classes)])
                within.append(values["auc_within"])
                errors.append(abs(values["auc"] - 100 * exact))
            print(f"{spread:6} {classes:7}  {min(within):.2f} to {max(within):.2f}  {max(errors):.3f}")


if __name__ == "__main__":
    main()
