"""Statistics of pixels against NumPy on real numbers, and kinds of files of which few are named."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedshift_datasets.quality import pixel_statistics


@given(st.integers(1, 130), st.integers(2, 9), st.integers(0, 2**31))
@settings(max_examples=25)
def test_numbers_are_those_of_numpy(n: int, side: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    low, high = sorted(rng.integers(0, 257, 2))
    x = rng.integers(low, max(high, low + 1), (n, side, side + 1, 3)).clip(0, 255).astype(np.uint8)
    real: NDArray[np.float64] = x.reshape(n, -1, 3) / 255
    found = pixel_statistics.of(x, 16)
    low, high = np.percentile(real, (5, 95), axis=(0, 1), method="inverted_cdf")
    wanted = {
        "images": n,
        "mean": real.mean(axis=(0, 1)),
        "variance": real.var(axis=(0, 1)),
        "image_std": real.std(axis=1, ddof=1).mean(axis=0),
        "low": low,
        "high": high,
    }
    for name, value in wanted.items():
        np.testing.assert_allclose(getattr(found, name), value, atol=1e-12, err_msg=name)
    for channel, histogram in zip(x.reshape(-1, 3).T, found.histogram, strict=True):
        counts, _ = np.histogram(channel, bins=16, range=(0, 256))
        np.testing.assert_allclose(histogram, counts / channel.size, atol=0.5e-4)


def test_sums_of_large_bright_images_fit() -> None:
    found = pixel_statistics.styles(np.full((1, 300, 300, 3), 255, np.uint8))
    assert found.tolist() == [[1, 1, 1, 0, 0, 0]]


@given(st.lists(st.sampled_from("abcdefgh"), max_size=120), st.integers(2, 30), st.integers(1, 4))
def test_no_kind_of_few_files_is_named_and_none_can_be_worked_out(kinds: list[str], least: int, most: int) -> None:
    found = pixel_statistics.frequent(kinds, least, most)
    counted, named = Counter(kinds), {k: n for k, n in found.items() if k != pixel_statistics.OTHER}
    assert all(n >= least for n in found.values())
    assert all(counted[kind] == n for kind, n in named.items())
    assert len(named) <= most
    hidden = len(kinds) - sum(named.values())
    assert hidden == 0 or hidden >= least or not named
    assert found.get(pixel_statistics.OTHER, 0) in (0, hidden)
