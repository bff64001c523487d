"""Parts of slow versions of terms, in NumPy and float64, and the check of a term against one."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support import Float, as64, gradient, numerical_gradient
from torch import Tensor


def plain(given: Any) -> Any:
    """Return what a slow version is given for tensors, also those in a list."""
    if isinstance(given, Tensor):
        return as64(given) if given.is_floating_point() else given.numpy()
    return [plain(each) for each in given] if isinstance(given, list) else given


def check(
    fast: Callable[..., Tensor], slow: Callable[..., Any], x: Tensor, *others: Any, rel: float = 1e-4,
    slope: tuple[float, float] = (1e-3, 1e-4),
) -> None:  # fmt: skip
    """Check that a term of `x` and others, and its gradient with respect to `x`, are those of a slow version."""
    theirs = plain(list(others))
    assert float(fast(x, *others).detach()) == pytest.approx(float(slow(as64(x), *theirs)), rel=rel, abs=1e-6)
    wanted = numerical_gradient(lambda at: float(slow(at, *theirs)), x)
    found = as64(gradient(lambda leaf: fast(leaf, *others), x))
    np.testing.assert_allclose(found, wanted, rtol=slope[0], atol=slope[1])


def changed(change: Callable[[Tensor], Tensor], given: Any) -> Any:
    """Return what a term is given with another one in the place of each tensor."""
    if isinstance(given, list | tuple):
        return [changed(change, each) for each in given]
    return change(given) if isinstance(given, Tensor) and given.ndim else given


def check_edges(
    fast: Callable[..., Tensor], x: Tensor, *others: Any, low: float = -1e-6, autocast: bool = True
) -> None:
    """Check a term of features at its edges: of length zero, tiny and huge ones, one sample, in bfloat16."""
    for n in (1, len(x)):
        given = changed(lambda o, n=n: o[:n] if len(o) == len(x) else o, others)  # type: ignore[misc]
        for scale in (0.0, 1e-20, 100.0):
            at = scale * x[:n]
            for other in given:
                if scale == 100 and isinstance(other, Tensor) and other.shape == at.shape:
                    at[0] = other[0]  # a feature that lies on another
            value, slope = fast(at, *given).detach(), gradient(lambda leaf, given=given: fast(leaf, *given), at)
            assert value.shape == () and value.isfinite() and value >= low and slope.isfinite().all()
    narrow, whole = changed(lambda o: o.bfloat16() if o.is_floating_point() else o, [x, *others]), fast(x, *others)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        assert not autocast or (torch.equal(fast(x, *others), whole) and fast(*narrow).dtype == torch.float32)


def check_features(fast: Callable[..., Tensor], slow: Callable[..., Any], *given: Any, **bounds: Any) -> None:
    """Check a term of features against a slow version, and at its edges."""
    check(fast, slow, *given, **bounds)
    check_edges(fast, *given)


def cosines(a: Float, b: Float) -> Float:
    """Return the cosine of each row with each other one; 0 where a row is 0."""
    lengths = np.outer(np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1))
    return np.divide(a @ b.T, lengths, out=np.zeros_like(lengths), where=lengths > 0)


def softmax(logits: Float) -> Float:
    """Return the probabilities of each row."""
    e: Float = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def cross_entropy(logits: Float, y: Any) -> float:
    """Return the mean over rows of -log of what the label has."""
    return float(-np.log(softmax(logits)[np.arange(len(y)), y]).mean())


def styles(f: Float) -> tuple[Float, Float]:
    """Return the mean and the deviation of each channel of each image."""
    return f.mean((2, 3)), np.sqrt(f.var((2, 3), ddof=1) + 1e-6)


def with_style(f: Float, mu: Float, sigma: Float) -> Float:
    """Return maps with other means and deviations."""
    (own_mu, own_sigma), last = styles(f), (..., None, None)
    return (f - own_mu[last]) / own_sigma[last] * sigma[last] + mu[last]
