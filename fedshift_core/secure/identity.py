"""The long-term key of a node, and its signature under its statement and its keys of a secure sum.

Nodes hear of each other through the server alone. So that it can invent nothing, a node signs what it states of its
images and its keys of each sum with the key of its SuperNode (``fedshift credentials node``), and others go by the
fingerprints that their owners trust (``secure_sums.trusted`` of a policy). This is what the papers' variant against an
active server asks for.

A fingerprint is that of ``ssh-keygen -lf NAME.pub``: SHA-256 of the public key as SSH writes it, in base64.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedshift_core.errors import ConfigError, FedShiftError, RequestError
from fedshift_core.limits import WHOLE_PATH, shown
from fedshift_core.secure import crypto
from fedshift_core.secure.group import Group

FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
PUBLIC = crypto.PUBLIC_BYTES
MOST_SIGNATURE = 104  # bytes of ECDSA over P-384, in DER
_ECDSA = ec.ECDSA(hashes.SHA384())
_DOMAIN = b"fedshift secure sums: "  # before each digest: with its key a node also signs times for the SuperLink


@dataclass(frozen=True)
class Signed:
    """What a node adds to its statement and its keys of a sum.

    Attributes:
        public: Its long-term public key, a compressed point.
        signature: Under them, in DER.
    """

    public: bytes
    signature: bytes


class Key:
    """A node's long-term key, in the process of its SuperNode alone.

    Args:
        path: Its file, as ``fedshift credentials node`` makes it.

    Raises:
        FedShiftError: If it cannot be read, or is no key on the curve P-384.
    """

    def __init__(self, path: Path) -> None:
        try:
            key = serialization.load_ssh_private_key(path.read_bytes(), password=None)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise FedShiftError(f"node key {shown(str(path), WHOLE_PATH)}: cannot be read: {error}") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.curve.name != crypto.CURVE.name:
            raise FedShiftError(f"node key {shown(str(path), WHOLE_PATH)}: it is no key on the curve P-384")
        self._key = key

    def sign(self, digest: bytes) -> Signed:
        """Return the public key and a signature under a digest, in a form that the SuperLink takes for nothing."""
        return Signed(crypto.compressed(self._key.public_key()), self._key.sign(_DOMAIN + digest, _ECDSA))


class Signer:
    """Signs for a node, wherever its key is.

    Args:
        sign: Signs a digest, as :meth:`Key.sign` does.
    """

    def __init__(self, sign: Callable[[bytes], Signed]) -> None:
        self._sign = sign

    def sign(self, run: str, index: int, group: tuple[int, str], parts: Sequence[bytes]) -> Signed:
        """Return the public key and a signature.

        Args:
            run: Names the run.
            index: The node's.
            group: The round, and what is summed.
            parts: The node's statement, and its public keys of this sum.
        """
        return self._sign(_signed(run, index, group, parts))


def check(group: Group, signed: Sequence[Signed], run: str, index: int, trusted: Sequence[str]) -> None:
    """Refuse a group in which another node's statement and keys are not signed by a key that this node's owner trusts.

    Args:
        group: The nodes, their statements and their keys.
        signed: What each of them added, in their order; with empty bytes where it added nothing.
        run: Names the run.
        index: This node's.
        trusted: Fingerprints.

    Raises:
        RequestError: With the node.
    """
    if len(signed) != len(group.nodes):
        raise RequestError(f"refused: signatures under keys of a secure sum: {len(signed)}, nodes: {len(group.nodes)}")
    seen: set[bytes] = set()
    stated = [statement.written() for statement in group.statements]
    for node, own, *parts in zip(group.nodes, signed, stated, group.cipher_keys, group.mask_keys, strict=True):
        if node == index:
            continue
        why = why_not(own, _signed(run, node, (group.server_round, group.purpose), parts), trusted)
        if why or own.public in seen:
            raise RequestError(
                f"refused: node {node} of the secure sum {why or 'signs with the key of another node'}: this node's "
                "owner trusts certain nodes alone (secure_sums.trusted of its policy)"
            )
        seen.add(own.public)


def read_public(path: Path) -> ec.EllipticCurvePublicKey:
    """Return the public key of a file, as ``fedshift credentials node`` makes it.

    Raises:
        ConfigError: If it cannot be read, or is no key on the curve P-384.
    """
    try:
        key = serialization.load_ssh_public_key(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"public key {shown(path, WHOLE_PATH)}: cannot be read: {error.strerror}") from None
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != crypto.CURVE.name:
        raise ConfigError(
            f"public key {shown(path, WHOLE_PATH)}: it is no public key on the curve P-384, as NAME.pub is"
        )
    return key


def fingerprint(public: ec.EllipticCurvePublicKey) -> str:
    """Return the fingerprint of a public key as ``ssh-keygen -l`` prints it."""
    written = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    digest = hashlib.sha256(base64.b64decode(written.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def why_not(own: Signed, digest: bytes, trusted: Sequence[str]) -> str:
    """Return why a signature does not count; empty where it does."""
    if not own.signature:
        return "has not signed its keys"
    try:
        public = crypto.point(own.public)
        public.verify(own.signature, _DOMAIN + digest, _ECDSA)
    except (FedShiftError, InvalidSignature):
        return "has a signature that is not right"
    name = fingerprint(public)
    return "" if name in trusted else f"has the key {name}, which is not among those"


def _signed(run: str, index: int, group: tuple[int, str], parts: Sequence[bytes]) -> bytes:
    """Return the digest of what is signed."""
    return crypto.digest("fedshift secure sums", run, index, *group, *parts)
