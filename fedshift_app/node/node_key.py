"""The signer of a real node: its key stays in the SuperNode's process, which the others ask through a socket.

A request is a digest, with a socket for the answer: the public key and a signature. The signer signs nothing else, and
in a form that no other use of the key has (:mod:`fedshift_core.secure.identity`).
"""

import contextlib
import socket
import threading
from pathlib import Path

from fedshift_core.errors import RequestError
from fedshift_core.secure.identity import MOST_SIGNATURE, PUBLIC, Key, Signed, Signer

SECONDS = 30.0  # for an answer
DIGEST = 32  # bytes
NONE = -1  # stands for the socket of a node without a key

_asked: socket.socket | None = None


def serve(path: Path) -> socket.socket:
    """Sign for whoever holds the socket that is returned, in a thread of this process.

    Args:
        path: The key's file.

    Raises:
        FedShiftError: If it cannot be read, or is no key on the right curve.
    """
    key = Key(path)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    threading.Thread(target=_answer, args=(key, ours), name="node-key", daemon=True).start()
    return theirs


def _answer(key: Key, asked: socket.socket) -> None:
    while True:
        with contextlib.suppress(OSError):  # who asked is gone
            digest, files, _, _ = socket.recv_fds(asked, DIGEST + 1, 1)
            for file in files:
                with socket.socket(fileno=file) as answer:
                    if len(digest) == DIGEST:
                        signed = key.sign(digest)
                        answer.sendall(signed.public + signed.signature)


def use(descriptor: int) -> None:
    """Sign through a socket that this process has inherited, from now on; :data:`NONE` for none."""
    global _asked
    _asked = None if descriptor == NONE else socket.socket(fileno=descriptor)


def signer() -> Signer | None:
    """Return the signer of this node; None where its SuperNode was started without a key."""
    return None if _asked is None else Signer(_signed)


def _signed(digest: bytes) -> Signed:
    """Return the SuperNode's signature.

    Raises:
        FedShiftError: If there is none.
    """
    assert _asked is not None
    ours, theirs = socket.socketpair()
    with ours:
        ours.settimeout(SECONDS)
        with theirs, contextlib.suppress(OSError):
            socket.send_fds(_asked, [digest], [theirs.fileno()])
        answer = b""
        with contextlib.suppress(OSError):
            while part := ours.recv(PUBLIC + MOST_SIGNATURE):
                answer += part
    if len(answer) <= PUBLIC:
        raise RequestError("refused: this node's key does not answer")
    return Signed(answer[:PUBLIC], answer[PUBLIC:])
