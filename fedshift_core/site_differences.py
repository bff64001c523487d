r"""Which sites have images that clearly differ in brightness or contrast, by one rule for reports and logs.

Two sites differ clearly in a channel where their means are half a standard deviation or more apart,
:math:`|\mu_a-\mu_b|\ge0.5\sqrt{(v_a+v_b)/2}` (Cohen's d of 0.5, a medium effect), or where one standard deviation is
1.5 times the other or more. Means and variances are those of all pixels of a site's training images.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedshift_core.limits import MOST_NAME, plain
from fedshift_core.plural import plural

MEAN_BOUND, SPREAD_BOUND = 0.5, 1.5
RULE = (
    f"the rule: in a colour channel means are {MEAN_BOUND:g} standard deviations or more apart, or one standard "
    f"deviation is {SPREAD_BOUND:g} times the other or more"
)
CHANNELS = ("red", "green", "blue")
LEAST_STD = 1 / 255  # one step of a byte

Triple = Sequence[float]
FloatArray = NDArray[np.float64]


def lifted(stds: FloatArray) -> FloatArray:
    """Return standard deviations by which one may divide: at least one step of a byte."""
    return np.maximum(stds, LEAST_STD)


def channels_text(values: Triple | FloatArray, separator: str = " / ") -> str:
    """Return the numbers of the three channels to two places; one number where they are the same."""
    texts = [f"{value:.2f}" for value in values]
    return texts[0] if len(set(texts)) == 1 else separator.join(texts)


@dataclass(frozen=True)
class Differences:
    """Pairs of sites that differ clearly.

    Attributes:
        pairs: How many there are.
        farthest: The two sites that exceed a bound most, by their places.
        channel: In which channel they do.
        by_mean: It is the bound of means.
        amount: How many standard deviations their means are apart, or how many times one deviation is the other.
    """

    pairs: int = 0
    farthest: tuple[int, int] = (0, 0)
    channel: int = 0
    by_mean: bool = True
    amount: float = 0.0


def differences(means: FloatArray, variances: FloatArray) -> Differences:
    """Return which of K sites differ clearly; means and variances are (K, 3), of numbers from 0 to 1."""
    stds = lifted(np.sqrt(variances))
    pairs, best = 0, Differences()
    excess = 1.0
    for i in range(len(means) - 1):
        apart = np.abs(means[i] - means[i + 1 :]) / np.sqrt((stds[i] ** 2 + stds[i + 1 :] ** 2) / 2)
        ratio = np.maximum(stds[i], stds[i + 1 :]) / np.minimum(stds[i], stds[i + 1 :])
        times = np.stack((apart / MEAN_BOUND, ratio / SPREAD_BOUND))  # 2 x others x 3
        pairs += int((times >= 1).any(axis=(0, 2)).sum())
        kind, j, channel = np.unravel_index(int(times.argmax()), times.shape)
        if times[kind, j, channel] > excess or (times[kind, j, channel] == excess and not best.amount):
            excess = float(times[kind, j, channel])
            amount = float((apart, ratio)[kind][j, channel])
            best = Differences(0, (i, i + 1 + int(j)), int(channel), kind == 0, amount)
    return Differences(pairs, best.farthest, best.channel, best.by_mean, best.amount)


def sentence(sites: Mapping[str, tuple[Triple, Triple]]) -> str:
    """Return which sites differ clearly, the farthest pair with its numbers; empty if none do.

    Args:
        sites: By name of the site: mean and variance of each channel.
    """
    names = list(sites)
    if len(names) < 2:
        return ""
    means, variances = (np.array([sites[name][i] for name in names], np.float64) for i in range(2))
    found = differences(means, variances)
    if not found.pairs:
        return ""
    (a, b), k = found.farthest, found.channel
    who = " and ".join(plain(names[i], MOST_NAME) for i in (a, b))
    kind, values = ("mean", means) if found.by_mean else ("standard deviation", np.sqrt(variances))
    pair = values[[a, b]]
    of = "" if np.allclose(pair, pair[:, :1], atol=0.005) else f" of {CHANNELS[k]}"  # grey images have one number
    unit = "standard deviations apart" if found.by_mean else "times"
    text = f"{kind}{of} {pair[0, k]:.2f} and {pair[1, k]:.2f}, {found.amount:.1f} {unit}"
    others = f"; {found.pairs - 1} more of {plural(math.comb(len(names), 2), 'pair')} do" if found.pairs > 1 else ""
    return f"images of {who} differ clearly: {text}{others} ({RULE})"
