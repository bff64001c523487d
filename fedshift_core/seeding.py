"""Random generators by name: each is derived from (run seed, purpose, numbers).

Nothing in FedShift draws from global state, so a result does not depend on the number of processes or the order of
replies.

The server knows the run's seed. Noise and masks that protect a node therefore come from the system's entropy
(:func:`unpredictable`).
"""

import secrets
import zlib

import numpy as np


def seed_sequence(seed: int, purpose: str, *numbers: int) -> np.random.SeedSequence:
    """Return the seed sequence of one purpose, e.g. ``("order", node, round)``.

    Args:
        seed: The run's seed, not negative.
        purpose: The use of the numbers; each purpose has its own stream.
        numbers: Indices of this stream (node index, round, ...), not negative. One purpose always has the same
            number of them, as trailing zeros do not count.
    """
    return np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), *numbers])


def generator(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """Return a NumPy generator for one purpose; see :func:`seed_sequence`."""
    return np.random.default_rng(seed_sequence(seed, purpose, *numbers))


def order_of(secret: int | None, seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """Return the generator of an order of a node's images: by its owner's secret if there is one, or by the seed."""
    return generator(seed, purpose, *numbers) if secret is None else generator(secret, purpose)


def torch_seed(seed: int, purpose: str, *numbers: int) -> int:
    """Return a 63-bit seed for ``torch.Generator.manual_seed``; see :func:`seed_sequence`."""
    state = seed_sequence(seed, purpose, *numbers).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))


def unpredictable() -> np.random.Generator:
    """Return a NumPy generator that is seeded from the system's entropy, for noise that protects a node.

    Each call asks the operating system again, so neither the run's seed nor a fork of the process predicts the draws.
    """
    return np.random.default_rng(secrets.randbits(256))
