"""FedHEAL strategy [Chen et al., 2024].

Paper: "Fair Federated Learning under Domain Skew with Local Consistency and Domain Diversity", Yuhang Chen,
Wenke Huang, Mang Ye, CVPR 2024; https://arxiv.org/abs/2405.16585. Reference code: yuhangchen0/FedHEAL, commit 770e094.

Symbols: w^t the weights that were sent, u_n = w^t - w_n, c_n the share of node n's rounds in which a number of u_n was
0 or above, M_n mask, d_n distance, p_n weight, Delta_n its step, beta and tau as in the configuration.

Deviations: (1) a node's history counts the rounds in which it took part, where the code counts those of the run: the
same with all nodes in all rounds; (2) d_n / sum d runs over the nodes of the round, where the code keeps what absent
nodes had. Both matter with partial participation only.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import NDArray

from fedshift_core.methods.fedheal import FedHEALParams
from fedshift_strategies.method import Arrays, DomainStrategy, Floats, Update, average, decode, encode

BoolArray = NDArray[np.bool_]
ROUNDS, WEIGHT, STEP, RISES = "rounds", "weight", "step", "rises"  # of a node, in the strategy's state


class FedHEALStrategy(DomainStrategy[FedHEALParams]):
    """Leaves inconsistent updates out, parameter by parameter, and weighs nodes by their distance.

    State, of each node n that ever took part, under ``n/``: ``weight`` and ``step`` () float64, p_n and Delta_n; with
    masks ``rounds`` () int64 and ``rises/NAME``, how often each number of u_n was 0 or above, of the weights' shapes.
    """

    sends = ()

    @cached_property
    def _weighed(self) -> Arrays:
        """State after the round, as weighing its nodes left it."""
        return {}

    def weights(self, updates: list[Update]) -> list[float]:
        """Return p / sum p after this round's step."""
        if not self.params.use_fair:
            return super().weights(updates)
        first = np.array(1 / len(updates))
        p = np.array([self.state.get(_key(update, WEIGHT), first) for update in updates], np.float64)
        before = np.array([self.state.get(_key(update, STEP), 0.0) for update in updates], np.float64)
        after, steps = fair_weights(p, before, self._distances(updates), self.params.beta)
        self._weighed = {}
        for update, weight, step in zip(updates, after, steps, strict=True):
            self._weighed |= {_key(update, WEIGHT): np.array(weight), _key(update, STEP): np.array(step)}
        return list((after / after.sum()).tolist())

    def merge(self, updates: list[Update], weights: list[float]) -> ArrayRecord:
        """Return the next weights, and note what this round said of each node."""
        state = self.state | self._weighed
        if not self.params.use_mask:
            self.state = state
            return average(updates, weights)
        for update in updates:
            state[_key(update, ROUNDS)] = np.array(self._rounds(update) + 1, np.int64)
        merged: Arrays = {}
        for name, sent in decode(self.sent).items():
            steps = [_step(sent, update.arrays()[name]) for update in updates]
            masks = [self._mask(update, name, step) for update, step in zip(updates, steps, strict=True)]
            moved = sent - harmonised(steps, masks, weights)
            merged[name] = (moved if sent.dtype.kind == "f" else np.rint(moved)).astype(sent.dtype)
            for update, step in zip(updates, steps, strict=True):
                if self._is_masked(name):
                    state[_key(update, RISES, name)] = self._risen(update, name, step)
        self.state = state
        return encode(merged)

    # --- parts ---------------------------------------------------------------------------------------

    def _distances(self, updates: Sequence[Update]) -> Floats:
        """Return d: the norms of a node's masked updates, summed over the parameters, (N,)."""
        norms = np.zeros(len(updates))
        for name, sent in decode(self.sent).items():
            if name in self.federation.buffers:
                continue
            for n, update in enumerate(updates):
                step = _step(sent, update.arrays()[name])
                norms[n] += np.linalg.norm(self._mask(update, name, step) * step)
        return norms

    def _mask(self, update: Update, name: str, step: Floats) -> BoolArray:
        rounds = self._rounds(update)
        if not self.params.use_mask or not rounds or not self._is_masked(name):
            return np.ones(step.shape, np.bool_)
        return consistent(step, self.state[_key(update, RISES, name)], rounds, self.params.tau)

    def _is_masked(self, name: str) -> bool:
        return self.params.mask_buffers or name not in self.federation.buffers

    def _risen(self, update: Update, name: str, step: Floats) -> NDArray[Any]:
        """Return a node's counts with this round, in the smallest type that holds them."""
        kind = np.min_scalar_type(self._rounds(update) + 1)
        before = self.state.get(_key(update, RISES, name), np.zeros(step.shape, np.uint8))
        return np.asarray(before.astype(kind) + (step >= 0), kind)

    def _rounds(self, update: Update) -> int:
        """Return in how many rounds the node took part before this one."""
        return int(self.state.get(_key(update, ROUNDS), 0))


def consistent(step: Floats, rises: NDArray[Any], rounds: int, tau: float) -> BoolArray:
    r"""Tell which numbers of an update go where they mostly went before.

    .. math:: M=\mathbf 1[\,c>\tau\ \text{where}\ u\ge0,\ 1-c>\tau\ \text{where}\ u<0\,],\quad c=\frac{\text{rises}}{t}

    Whole numbers are compared: rounded shares would let ties (3 of 10 rounds at 0.3) go by the sign of the update.

    Args:
        step: u, of any shape.
        rises: In how many earlier rounds u was 0 or above, of the same shape, an unsigned integer.
        rounds: t, how many earlier rounds there were, above 0.
        tau: The threshold, taken as the decimal number that it is written as.
    """
    most = math.floor(Fraction(repr(float(tau))) * rounds)  # a count is above tau if it is above this
    return np.where(step >= 0, rises > most, rises < rounds - most)


def fair_weights(p: Floats, steps: Floats, distances: Floats, beta: float) -> tuple[Floats, Floats]:
    r"""Let nodes that move far weigh more, with a momentum.

    .. math:: \Delta_n\leftarrow(1-\beta)\Delta_n+\beta\frac{d_n}{\sum_md_m},\quad p_n\leftarrow p_n+\Delta_n

    Args:
        p: Weights before, (N,); they sum to anything above 0.
        steps: Delta before, (N,).
        distances: d, (N,), from 0 up; where nobody moved all count as equally far.
        beta: Weight of the distances.

    Returns:
        p and Delta after, (N,) each.
    """
    total = distances.sum()
    share = distances / total if total > 0 else np.full(len(p), 1 / len(p))
    steps = (1 - beta) * steps + beta * share
    return p + steps, steps


def harmonised(steps: Sequence[Floats], masks: Sequence[BoolArray], weights: Sequence[float]) -> Floats:
    r"""Average masked updates; at each place over the nodes whose update counts there.

    .. math:: \sum_n\frac{p_nM_n}{\sum_mp_mM_m}\,M_n\odot u_n

    Args:
        steps: u of each node, of one shape.
        masks: M of each node.
        weights: p of each node, from 0 up.

    Returns:
        The average, of the same shape; 0 where no update counts.
    """
    total = np.zeros(steps[0].shape)
    counted = np.zeros(steps[0].shape)
    for step, mask, weight in zip(steps, masks, weights, strict=True):
        total += weight * (mask * step)
        counted += weight * mask
    return np.divide(total, counted, out=np.zeros_like(total), where=counted > 0)


def _step(sent: NDArray[Any], got: NDArray[Any]) -> Floats:
    return np.asarray(np.subtract(sent, got, dtype=np.float64))


def _key(update: Update, what: str, name: str = "") -> str:
    return "/".join(part for part in (str(update.node.index), what, name) if part)
