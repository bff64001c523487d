"""Keys, shares, ciphertexts and masks of secure sums, written as Flower's SecAgg+ writes them.

Keys are agreed on the curve P-384 and derived by HKDF, as Flower derives them; shares are encrypted with Fernet, and
Shamir's of 16 bytes each. The stream of masks is another: Flower's ``pseudo_rand_gen`` folds a seed into 32 bits, all
of which a server could try, and never draws the largest residue. Here a mask is the key stream of AES-256 in counter
mode, under all 256 bits.
"""

import base64
import hashlib
import os
from collections.abc import Sequence

import numpy as np
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from numpy.typing import NDArray

from fedshift_core.errors import FedShiftError, RequestError
from fedshift_core.limits import BLOCK

CURVE = ec.SECP384R1()
SECRET_BYTES = 48  # of a private key
SEED_BYTES = 32
PUBLIC_BYTES = 49  # of a compressed point
DIGEST_BYTES = 32
#: Bytes of Shamir's share of a secret of so many: four of its place, then the padded secret.
SHARE_BYTES = {SEED_BYTES: 4 + SEED_BYTES + 16, SECRET_BYTES: 4 + SECRET_BYTES + 16}
_PADDING = bytes([16]) * 16  # PKCS 7, of a secret of whole blocks

Residues = NDArray[np.uint32]


def new_secret() -> bytes:
    """Return a private key."""
    return ec.generate_private_key(CURVE).private_numbers().private_value.to_bytes(SECRET_BYTES, "big")


def new_seed() -> bytes:
    """Return the seed of a node's own mask, from the system's entropy."""
    return os.urandom(SEED_BYTES)


def compressed(public: ec.EllipticCurvePublicKey) -> bytes:
    """Return a public key as it travels."""
    return public.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def public_of(secret: bytes) -> bytes:
    """Return the public key of a private one.

    Raises:
        FedShiftError: If it is no private key.
    """
    return compressed(_private(secret).public_key())


def is_public(key: bytes) -> bool:
    """Return whether a text is a public key: a compressed point of the curve."""
    try:
        return len(key) == PUBLIC_BYTES and bool(point(key))
    except FedShiftError:
        return False


def is_pair(secret: bytes, public: bytes) -> bool:
    """Return whether a text is the private key of a public one."""
    try:
        return public_of(secret) == public
    except FedShiftError:
        return False


def agreed(secret: bytes, public: bytes) -> bytes:
    """Return the key that the owners of two key pairs share; Fernet takes it as it is.

    Raises:
        FedShiftError: If one is no key.
    """
    shared = _private(secret).exchange(ec.ECDH(), point(public))
    return base64.urlsafe_b64encode(HKDF(hashes.SHA256(), 32, None, None).derive(shared))


def encrypted(key: bytes, text: bytes) -> bytes:
    """Return a text that only who has the key can read or write."""
    return Fernet(key).encrypt(text)


def decrypted(key: bytes, text: bytes) -> bytes | None:
    """Return what :func:`encrypted` was given; None where it was not written with this key."""
    try:
        return Fernet(key).decrypt(text)
    except InvalidToken:
        return None


def shares_of(secret: bytes, threshold: int, number: int) -> list[bytes]:
    """Return Shamir's shares of a secret of whole blocks: ``threshold`` give it back, fewer tell nothing."""
    text = secret + _PADDING
    blocks = [Shamir.split(threshold, number, text[i : i + 16], False) for i in range(0, len(text), 16)]
    return [
        (place + 1).to_bytes(4, "little") + b"".join(block[place][1] for block in blocks) for place in range(number)
    ]


def joined(shares: Sequence[bytes]) -> bytes | None:
    """Return the secret of enough shares; None where they are not of one."""
    places = [int.from_bytes(share[:4], "little") for share in shares]
    try:
        text = b"".join(
            Shamir.combine([(place, share[i : i + 16]) for place, share in zip(places, shares, strict=True)], False)
            for i in range(4, len(shares[0]), 16)
        )
    except ValueError:
        return None
    return text.removesuffix(_PADDING) if text.endswith(_PADDING) else None


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


def point(public: bytes) -> ec.EllipticCurvePublicKey:
    """Return a public key that was written as a point of the curve.

    Raises:
        RequestError: If it is none.
    """
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(CURVE, public)
    except ValueError:
        raise RequestError("secure sums: a public key is no point of the curve") from None


def _private(secret: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        return ec.derive_private_key(int.from_bytes(secret, "big"), CURVE)
    except ValueError:
        raise FedShiftError("secure sums: a private key is none of the curve") from None
