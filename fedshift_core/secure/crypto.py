"""Keys, shares, ciphertexts and masks of secure sums, from Flower's primitives for SecAgg+.

Of Flower: key agreement and authenticated encryption (Fernet), Shamir's shares, the plaintext of a pair of shares.
Not of Flower: the stream of masks. Its ``pseudo_rand_gen`` folds a seed into 32 bits, all of which a server could try,
and never draws the largest residue. Here a mask is the key stream of AES-256 in counter mode, under all 256 bits.

Flower is imported where it is used: a node trains without it.
"""

import hashlib
import os
from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from numpy.typing import NDArray

from fedshift_core.errors import FedShiftError, RequestError
from fedshift_core.limits import BLOCK

CURVE = ec.SECP384R1()  # Flower's
SECRET_BYTES = 48  # of a private key
SEED_BYTES = 32
PUBLIC_BYTES = 49  # of a compressed point
DIGEST_BYTES = 32
#: Bytes of Shamir's share of a secret of so many: four of its place, then the padded secret.
SHARE_BYTES = {SEED_BYTES: 4 + SEED_BYTES + 16, SECRET_BYTES: 4 + SECRET_BYTES + 16}

Residues = NDArray[np.uint32]


def new_secret() -> bytes:
    """Return a private key."""
    return ec.generate_private_key(CURVE).private_numbers().private_value.to_bytes(SECRET_BYTES, "big")


def new_seed() -> bytes:
    """Return the seed of a node's own mask, from the system's entropy."""
    return os.urandom(SEED_BYTES)


def public_of(secret: bytes) -> bytes:
    """Return the public key of a private one.

    Raises:
        FedShiftError: If it is no private key.
    """
    return _private(secret).public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def is_public(key: bytes) -> bool:
    """Return whether a text is a public key: a compressed point of the curve."""
    try:
        return len(key) == PUBLIC_BYTES and bool(_public(key))
    except FedShiftError:
        return False


def is_pair(secret: bytes, public: bytes) -> bool:
    """Return whether a text is the private key of a public one."""
    try:
        return public_of(secret) == public
    except FedShiftError:
        return False


def agreed(secret: bytes, public: bytes) -> bytes:
    """Return the key that the owners of two key pairs share, as Flower derives it; Fernet takes it as it is.

    Raises:
        FedShiftError: If one is no key.
    """
    from fedshift_core.secure.primitives import generate_shared_key

    return generate_shared_key(_private(secret), _public(public))


def encrypted(key: bytes, text: bytes) -> bytes:
    """Return a text that only who has the key can read or write (Fernet)."""
    from fedshift_core.secure.primitives import encrypt

    return encrypt(key, text)


def decrypted(key: bytes, text: bytes) -> bytes | None:
    """Return what :func:`encrypted` was given; None where it was not written with this key."""
    from cryptography.fernet import InvalidToken

    from fedshift_core.secure.primitives import decrypt

    try:
        return decrypt(key, text)
    except InvalidToken:
        return None


def pair_of_shares(source: int, target: int, seed_share: bytes, secret_share: bytes) -> bytes:
    """Return the plaintext of what one node gives another one, as Flower writes it."""
    from fedshift_core.secure.primitives import share_keys_plaintext_concat

    return share_keys_plaintext_concat(source, target, seed_share, secret_share)


def read_pair(text: bytes) -> tuple[int, int, bytes, bytes]:
    """Return source, target and both shares of :func:`pair_of_shares`."""
    from fedshift_core.secure.primitives import share_keys_plaintext_separate

    return share_keys_plaintext_separate(text)


def shares_of(secret: bytes, threshold: int, number: int) -> list[bytes]:
    """Return Shamir's shares of a secret, of which ``threshold`` give it back and fewer tell nothing."""
    from fedshift_core.secure.primitives import create_shares

    return create_shares(secret, threshold, number)


def joined(shares: Sequence[bytes]) -> bytes | None:
    """Return the secret of enough shares; None where they are not of one."""
    from fedshift_core.secure.primitives import combine_shares

    try:
        return combine_shares(list(shares))
    except ValueError:
        return None


def digest(*parts: bytes | int | str) -> bytes:
    """Return the SHA-256 of several parts, each with its length before it."""
    hashed = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        hashed.update(len(data).to_bytes(8, "little") + data)
    return hashed.digest()


def add_mask(vector: Residues, key: bytes, *, minus: bool = False) -> None:
    """Add the mask of a key of 32 bytes to residues modulo 2^32, in place, or take it off."""
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    zeros, step = bytes(BLOCK), BLOCK // 4
    apply = np.subtract if minus else np.add
    for start in range(0, vector.size, step):
        part = vector[start : start + step]
        apply(part, np.frombuffer(stream.update(zeros[: 4 * part.size]), "<u4"), out=part)


def _private(secret: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        return ec.derive_private_key(int.from_bytes(secret, "big"), CURVE)
    except ValueError:
        raise FedShiftError("secure sums: a private key is none of the curve") from None


def _public(public: bytes) -> ec.EllipticCurvePublicKey:
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(CURVE, public)
    except ValueError:
        raise RequestError("secure sums: a public key is no point of the curve") from None
