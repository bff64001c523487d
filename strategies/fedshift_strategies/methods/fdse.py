"""FDSE strategy [Wang et al., 2025].

Paper: "Federated Learning with Domain Shift Eraser", Zheng Wang, Zihui Wang, Zheng Wang, Xiaoliang Fan, Cheng Wang,
CVPR 2025; https://arxiv.org/abs/2503.13063. Reference code: WwZzz/FDSE_CVPR25, commit 01f7bd7 (``algorithm/fdse.py``).

Symbols: w a shared tensor as it was sent, u_n = w_n - w a node's update of it, lambda the weights of the shortest
convex combination, theta_n an eraser's tensor on node n, tau temperature.

Deviations: (1) of ``num_batches_tracked`` the mean is taken, as elsewhere here, not the sum, which grows without bound;
(2) a node that has not taken part yet is sent the mean of the erasers, where the code has initial ones for it; (3) a
tensor of zeros has the cosine 0 with all others, where the code divides by zero.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray
from scipy.optimize import nnls

from fedshift_core.methods.fdse import FDSEParams
from fedshift_strategies.method import Arrays, Ask, DomainStrategy, Floats, Node, Update, decode, encode
from fedshift_strategies.methods.heads import mean_head

#: What an eraser's tensors are called: its BatchNorm's scale and shift, its depth-wise convolution.
ERASERS = (".dse_bn.", ".dse_conv.")
SMALL = 1e-8  # added to a norm that is divided by, as in the code


class FDSEStrategy(DomainStrategy[FDSEParams]):
    """Merges extractors by the consensus of their updates, and gives each node a mixture of erasers like its own.

    The shared weights hold the mean of the erasers, for nodes that have none yet. State: ``n/NAME``, the erasers of
    node n, which only that node is sent.
    """

    sends = tuple(f"*{part}*" for part in ERASERS)

    @classmethod
    def weighs_alike(cls, params: FDSEParams) -> bool:
        """Weigh each node the same: of statistics, norms and the mean of the erasers."""
        return True

    def merge(self, updates: list[Update], weights: list[float]) -> ArrayRecord:
        """Return the next shared weights, and mix the erasers of each node of the round."""
        sent, arrays = decode(self.sent), [update.arrays() for update in updates]
        averaged = [name for name in sent if is_eraser(name) or name in self.federation.buffers]
        merged = mean_head([{name: own[name] for name in averaged} for own in arrays], weights)
        for name in [name for name in sent if name not in merged]:
            before = sent[name]
            merged[name] = before + consensus([own[name] - before for own in arrays], weights).astype(before.dtype)
        for name in filter(is_eraser, sent):
            mixed = mixtures([own[name] for own in arrays], self.params.tau)
            erasers = {_key(update.node, name): array for update, array in zip(updates, mixed, strict=True)}
            self.state = self.state | erasers
        return encode({name: merged[name] for name in sent})

    def knowledge_for(self, node: Node, ask: Ask) -> Arrays:
        """Return the node's own erasers by state-dict name; nothing before it has taken part."""
        own = _key(node, "")
        return {key.removeprefix(own): array for key, array in self.state.items() if key.startswith(own)}


def is_eraser(name: str) -> bool:
    """Tell whether a shared tensor is an eraser's, by its state-dict name."""
    return any(part in f".{name}" for part in ERASERS)


def consensus(updates: Sequence[NDArray[Any]], weights: Sequence[float]) -> Floats:
    r"""Merge updates of a tensor so that all nodes are moved along, however long theirs are.

    .. math:: \bar{\|u\|}\sum_n\lambda_n\frac{u_n}{\|u_n\|},\quad
        \lambda=\arg\min_{\lambda\ge0,\,\sum\lambda=1}\Big\|\sum_n\lambda_n\frac{u_n}{\|u_n\|}\Big\|^2

    Args:
        updates: u of each node, of one shape.
        weights: Of the nodes in the mean norm, 1 in sum.

    Returns:
        The merged update, of the same shape.
    """
    flat = np.stack([update.reshape(-1).astype(np.float64) for update in updates])  # N x numbers
    norms = np.linalg.norm(flat, axis=1)
    flat /= norms[:, None] + SMALL
    mean = float(np.dot(weights, norms))
    return np.asarray(mean * (shortest(flat @ flat.T) @ flat)).reshape(updates[0].shape)


def shortest(gram: Floats) -> Floats:
    r"""Return the weights of the shortest convex combination of vectors.

    Of x from 0 up with sum s, :math:`\|Vx\|^2+(1-s)^2=s^2\|V\lambda\|^2+(1-s)^2` where lambda = x / s: whatever s is,
    the best lambda is the wanted one. So this is non-negative least squares of one row more than the vectors have.

    Args:
        gram: Inner products of the vectors, (N, N).

    Returns:
        lambda, (N,), from 0 up and 1 in sum.
    """
    values, vectors = np.linalg.eigh(gram)
    root = np.sqrt(values.clip(min=0))[:, None] * vectors.T  # root.T @ root is the gram matrix
    rows = np.vstack([root, np.ones(len(gram))])
    solution, _ = nnls(rows, np.append(np.zeros(len(gram)), 1.0))
    return np.asarray(solution / solution.sum())


def mixtures(tensors: Sequence[NDArray[Any]], tau: float) -> list[NDArray[Any]]:
    r"""Mix each node's tensor with those of the others, the more the likelier they are.

    .. math:: \theta_n\leftarrow\sum_m\mathrm{softmax}_m\big(\cos(\theta_n,\theta_m)/\tau\big)\,\theta_m

    Args:
        tensors: theta of each node, of one shape.
        tau: Temperature.

    Returns:
        That of each node, in the type of the given ones.
    """
    flat = np.stack([tensor.reshape(-1).astype(np.float64) for tensor in tensors])  # N x numbers
    norms = np.linalg.norm(flat, axis=1, keepdims=True)
    unit = flat / np.where(norms > 0, norms, 1)
    scores = np.exp((unit @ unit.T - 1) / tau)  # cosines are 1 at most
    mixed = scores / scores.sum(axis=1, keepdims=True) @ flat
    return [row.reshape(tensors[0].shape).astype(tensors[0].dtype) for row in mixed]


def _key(node: Node, name: str) -> str:
    return f"{node.index}/{name}"
