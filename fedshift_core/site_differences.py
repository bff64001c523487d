r"""Which sites have images that clearly differ in brightness or contrast, by one rule for reports and logs.

Two sites differ clearly in a channel where their means are half a standard deviation or more apart,
:math:`|\mu_a-\mu_b|\ge0.5\sqrt{(v_a+v_b)/2}` (Cohen's d of 0.5, a medium effect), or where one standard deviation is
1.5 times the other or more. Means and variances are those of all pixels of a site's training images.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fedshift_core.arrays import Floats
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


def lifted(stds: Floats) -> Floats:
    """Return standard deviations by which one may divide: at least one step of a byte."""
    return np.maximum(stds, LEAST_STD)


def channels_text(values: Triple | Floats, separator: str = " / ") -> str:
    """Return the numbers of the three channels to two places; one number where they are the same."""
    texts = [f"{value:.2f}" for value in values]
    return texts[0] if len(set(texts)) == 1 else separator.join(texts)


def sentence(sites: Mapping[str, tuple[Triple, Triple]]) -> str:
    """Return which sites differ clearly, the farthest pair with its numbers; empty if none do.

    Args:
        sites: By name of the site: mean and variance of each channel, of numbers from 0 to 1.
    """
    names = list(sites)
    means, variances = (np.array([sites[name][i] for name in names], np.float64) for i in range(2))
    stds, number, best, text = lifted(np.sqrt(variances)), 0, 0.0, ""
    for i in range(len(names) - 1):
        apart = np.abs(means[i] - means[i + 1 :]) / np.sqrt((stds[i] ** 2 + stds[i + 1 :] ** 2) / 2)
        ratio = np.maximum(stds[i], stds[i + 1 :]) / np.minimum(stds[i], stds[i + 1 :])
        times = np.stack((apart / MEAN_BOUND, ratio / SPREAD_BOUND))  # 2 x others x 3
        number += int((times >= 1).any(axis=(0, 2)).sum())
        kind, j, k = np.unravel_index(int(times.argmax()), times.shape)
        if times[kind, j, k] < 1 or times[kind, j, k] <= best:
            continue
        best, pair = float(times[kind, j, k]), [i, i + 1 + int(j)]
        what, values = (("mean", means), ("standard deviation", np.sqrt(variances)))[kind]
        amount, unit = ((apart, "standard deviations apart"), (ratio, "times"))[kind]
        grey = np.allclose(values[pair], values[pair][:, :1], atol=0.005)  # these have one number
        of, (a, b) = "" if grey else f" of {CHANNELS[k]}", values[pair, k]
        who = " and ".join(plain(names[place], MOST_NAME) for place in pair)
        text = f"images of {who} differ clearly: {what}{of} {a:.2f} and {b:.2f}, {amount[j, k]:.1f} {unit}"
    others = f"; {number - 1} more of {plural(math.comb(len(names), 2), 'pair')} do" if number > 1 else ""
    return f"{text}{others} ({RULE})" if text else ""
