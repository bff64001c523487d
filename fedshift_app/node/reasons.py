"""Reasons of a node that cannot answer: what the server is shown of an error, and what stays in the node's own log.

The text of an error is made of what the error is about: names of files, labels, headers of CSVs, counts. On a node
whose owner's policy hides what few images tell (``least_images`` above 1), only the text of a
:class:`fedshift_core.errors.RequestError` leaves, which is made of the request and the policy alone. Of any other error
its code leaves, in a fixed sentence.
"""

import errno
import logging

from flwr.app import Context

from fedshift_app.node import policy, state_folder
from fedshift_app.node.place import PolicyError
from fedshift_core import atomic_io
from fedshift_core.errors import (
    ConfigError,
    DataError,
    FedShiftError,
    ForgottenError,
    NotFiniteError,
    RequestError,
    StorageError,
)
from fedshift_core.limits import Wild, plain
from fedshift_core.wire.names import DECLINED, DISK_FAILED, MACHINE_FAILED, RAISED

log = logging.getLogger("fedshift")

#: What torch says where a CPU or a GPU has no memory left; none of it has a type of its own everywhere.
NO_MEMORY = ("out of memory", "can't allocate memory", "STATUS_ALLOC_FAILED")
DISK, MEMORY, FORGOTTEN, REFUSED, INTERNAL = "disk", "memory", "forgotten", "refused", "internal"
#: The codes, and what each says; "not finite" is what the server counts (``fedshift_strategies.federation.updates``).
SENTENCES = {
    DISK: "this node cannot write or read what it keeps on its disk",
    MEMORY: "this node has no memory left",
    FORGOTTEN: "this node no longer has what only the memory of its process held",
    "diverged": "training came to numbers that are not finite",
    "data": "this node's images or labels are not as the run needs them",
    "configuration": "the run's configuration and this node do not go together",
    REFUSED: "this node cannot do what is asked",
    INTERNAL: "this node met an error that nobody foresaw",
}
#: The code of each class of errors; the first that fits.
_CLASSES: tuple[tuple[type[Exception], str], ...] = (
    (StorageError, DISK),
    (MemoryError, MEMORY),
    (ForgottenError, FORGOTTEN),
    (NotFiniteError, "diverged"),
    (Wild, "diverged"),
    (DataError, "data"),
    (ConfigError, "configuration"),
    (FedShiftError, REFUSED),
)
#: What a simulated node's error says of its machine, which a real node keeps to itself.
_OF_MACHINE = {DISK: DISK_FAILED, MEMORY: MACHINE_FAILED, FORGOTTEN: MACHINE_FAILED}


def of(error: Exception, context: Context) -> tuple[int, str]:
    """Return the number of an error and its text, as both may leave the node; the full text goes into the node's log.

    Args:
        error: What was raised in the place of an answer.
        context: The node's.
    """
    code, text = code_of(error), str(error)
    simulated = state_folder.own_folder(context.node_config) is None
    if isinstance(error, PolicyError):
        log.warning("refused by this node's policy: %s", error)
        return DECLINED, plain(text)
    if not isinstance(error, FedShiftError):
        log.error("this node failed", exc_info=error)
        text = f"{type(error).__name__}: {error}"
    elif not simulated:
        log.error("this node cannot answer: %s", error)
    number = _OF_MACHINE.get(code, RAISED) if simulated else RAISED
    if simulated or isinstance(error, RequestError) or not _hides(context):
        return number, plain(text)
    return number, sentence(code)


def sentence(code: str) -> str:
    """Return what leaves the node in the place of an error's text."""
    return f"{code}: {SENTENCES[code]}; its own log has the details"


def code_of(error: Exception) -> str:
    """Return the code of an error: one of ``SENTENCES``."""
    number = error.errno if isinstance(error, OSError) else None
    if number in atomic_io.DISK:
        return DISK
    if number == errno.ENOMEM or (isinstance(error, RuntimeError) and any(text in str(error) for text in NO_MEMORY)):
        return MEMORY
    return next((code for kind, code in _CLASSES if isinstance(error, kind)), INTERNAL)


def _hides(context: Context) -> bool:
    """Tell whether the owner's policy hides what few images tell; one that cannot be read does."""
    try:
        loaded = policy.load(str(context.node_config.get(policy.POLICY, policy.STRICT)))
    except FedShiftError:
        return True
    return loaded.policy.least_images > 1
