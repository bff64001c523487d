"""Reads a file of weights without running anything in it. It is fitted to a network name by name, shape by shape.

Names are ours (``encoder.*``, ``classifier.*``, which ``fedshift save`` writes) or those of the network's library.
"""

import hashlib
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from fedshift_clients.models import packages
from fedshift_clients.models.libraries import LibraryEncoder
from fedshift_clients.models.networks import SplitModel
from fedshift_clients.models.projection import PART
from fedshift_core.errors import ConfigError
from fedshift_core.limits import as_found, largest, shown, some
from fedshift_core.plural import plural

SUFFIXES = (".safetensors", ".pth", ".pt")
MOST_BYTES = 1 << 34  # of a file: ten times the largest network of torchvision
WRAPPED = ("state_dict", "model")  # keys under which training scripts keep a state dict
COUNTER = ".num_batches_tracked"  # of BatchNorm; files from before 2018 lack it
ENCODER, HEAD, BODY = "encoder.", "classifier.", "encoder.body."
KNOWLEDGE = "knowledge/"  # prefix of what a saved model classifies by in addition to weights
ADDED = f"{ENCODER}{PART}."  # a projection, which a file need not have
_OLD_DENSENET = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12])\.")
_NAMED = 3  # names of a kind that a message tells
_MOST_NAME = 45  # characters of one in a message of one line


@dataclass(frozen=True)
class Fitted:
    """What of a file a network takes.

    Attributes:
        values: By state-dict name of the model, in its types.
        left_out: What of the file is not used and why, one line each.
    """

    values: dict[str, Tensor]
    left_out: tuple[str, ...]


def read(path: Path, sha256: str = "") -> dict[str, Tensor]:
    """Return the tensors of a file by name.

    Args:
        path: A .safetensors, .pth or .pt file.
        sha256: What its SHA-256 must be; empty for any.

    Raises:
        ConfigError: If it is none, is too large, is another file than asked for, or holds anything but tensors.
    """
    if path.suffix not in SUFFIXES:
        raise packages.problem(path, f"expected a file that ends in {', '.join(SUFFIXES)}")
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise packages.problem(path, f"it has {plural(size, 'byte')}, allowed are {MOST_BYTES}")
        data = path.read_bytes()
    except OSError as error:
        raise packages.problem(path, error.strerror or "it cannot be read") from None
    if sha256 and (digest := hashlib.sha256(data).hexdigest()) != sha256:
        raise packages.other_file(path, digest, sha256)
    try:
        content: Any = safetensors.torch.load(data) if path.suffix == ".safetensors" else _unpickled(data)
    except Exception as error:  # whatever the two libraries raise of bytes that are no such file
        reason = " ".join(str(error).split())[:80]
        raise packages.problem(path, f"it is no file of tensors alone ({type(error).__name__}: {reason})") from None
    for key in WRAPPED:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not content:
        raise packages.problem(path, "expected tensors by name")
    for name, tensor in content.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
            raise packages.problem(path, f"expected tensors by name, found {as_found(name)}: {type(tensor).__name__}")
    return dict(content)


def fitted(model: SplitModel, given: Mapping[str, Tensor], name: str, file: str) -> Fitted:
    """Fit tensors to a model. The encoder must be complete; a head of another size is left out.

    Parts that a method or modules add are taken where the file has them, else they begin as they would.

    Args:
        model: With its initial weights.
        given: By our names or by the library's.
        name: Of the network, for messages.
        file: Where they are from, for messages.

    Raises:
        ConfigError: If a name is missing or unknown, a shape or type differs, or a number is not finite.
    """
    named, left_out = _our_names(model, given)
    state = model.state_dict()
    head = {key: tensor.shape for key, tensor in named.items() if key.startswith(HEAD)}
    if head != {key: tensor.shape for key, tensor in state.items() if key.startswith(HEAD)}:
        named = {key: tensor for key, tensor in named.items() if key not in head}
        left_out.append("a head of other classes or layers, or none: the run's head begins at random")
    added = _added(model)
    missing = [
        key
        for key in state
        if key.startswith(ENCODER) and key not in named and not key.endswith(COUNTER) and key not in added
    ]
    unknown = [key for key in named if key not in state]
    if missing or unknown:
        parts = [
            f"lacks {_few(missing)}" if missing else "",
            f"has {_few(unknown)}, which it has not" if unknown else "",
        ]
        raise ConfigError(
            f"model.weights: {shown(file, packages.MOST_PATH)} is not of {name}: it {' and '.join(filter(None, parts))}"
        )
    return Fitted({key: _checked(key, tensor, state[key], file) for key, tensor in named.items()}, tuple(left_out))


def _added(model: SplitModel) -> set[str]:
    """Return what of the encoder a file need not have: a projection, and what layers of a method name as ``added``."""
    names = {key for key in model.state_dict() if key.startswith(ADDED)}
    for path, layer in model.named_modules():
        names |= {f"{path}.{name}" for name in getattr(layer, "added", ())}
    return names


def in_order(model: SplitModel, given: Mapping[str, Tensor], size: int, file: str) -> dict[str, Tensor]:
    """Return tensors that have names of their own by those of the network's library: in its order, the head last.

    Counters of BatchNorm may be missing from the file.

    Args:
        model: With its initial weights.
        given: In the order of the library's state dict.
        size: Of the images, in pixels.
        file: Where they are from, for messages.

    Raises:
        ConfigError: With the first whose shape differs, or if there are too few, or the network is of no library.
    """
    encoder = model.encoder
    if not isinstance(encoder, LibraryEncoder):
        raise ConfigError(f"model.weights={file} is in a library's order, but the network is of no library")
    counted = any(key.endswith(COUNTER) for key in given)
    wanted = {
        key: tuple(tensor.shape)
        for key, tensor in encoder.outline(size).state_dict().items()
        if counted or not key.endswith(COUNTER)
    }
    which = f"model.weights: {shown(file, packages.MOST_PATH)}"
    if len(given) < len(wanted):
        raise ConfigError(
            f"{which} has {plural(len(given), 'array')}, {encoder.name} has {len(wanted)} before its head"
        )
    for place, ((key, tensor), (name, shape)) in enumerate(zip(given.items(), wanted.items(), strict=False), 1):
        if tuple(tensor.shape) != shape:
            raise ConfigError(
                f"{which}: array {place}, {shown(key, _MOST_NAME)}, has shape {tuple(tensor.shape)}, but "
                f"{shown(name, _MOST_NAME)} of {encoder.name} has {shape}"
            )
    rest = list(given)[len(wanted) :]
    names = [*wanted, *(f"{encoder.head}.{key.rpartition('.')[2]}" for key in rest)]
    return dict(zip(names, given.values(), strict=True))


def _our_names(model: SplitModel, given: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Return tensors by our names, and what of a library's file is set aside."""
    encoder, state = model.encoder, model.state_dict()
    if not isinstance(encoder, LibraryEncoder):
        return dict(given), []
    by_library = {in_body(encoder.body, _OLD_DENSENET.sub(r"\1\2.", key)): tensor for key, tensor in given.items()}
    of_library = sum(BODY + key in state for key in by_library)
    if of_library <= sum(key in state for key in given):
        return dict(given), []
    named, aside = {}, []
    for key, tensor in by_library.items():
        layer, _, leaf = key.rpartition(".")
        if encoder.head and layer == encoder.head:
            named[HEAD + leaf] = tensor
        elif encoder.aside and key.startswith(encoder.aside):
            aside.append(key)
        else:
            named[BODY + key] = tensor
    return named, [f"layers that the network has not ({_few(aside)})"] if aside else []


def in_body(body: nn.Module, key: str) -> str:
    """Return a library's name as it is in a network of which blocks were taken out: there stages.0 is stages_0."""
    parts = key.split(".")
    for end in range(2, len(parts)):
        if (block := "_".join(parts[:end])) in body._modules:
            return ".".join((block, *parts[end:]))
    return key


def _checked(key: str, tensor: Tensor, wanted: Tensor, file: str) -> Tensor:
    which = f"model.weights: {shown(file, packages.MOST_PATH)}: {shown(key, _MOST_NAME)}"
    if tensor.shape != wanted.shape:
        raise ConfigError(f"{which} has shape {tuple(tensor.shape)}, the network's has {tuple(wanted.shape)}")
    if tensor.is_floating_point() != wanted.is_floating_point() or tensor.is_complex():
        raise ConfigError(f"{which} is of type {tensor.dtype}, the network's of {wanted.dtype}")
    value = tensor.detach().to(device="cpu", dtype=wanted.dtype).contiguous()
    if not np.isfinite(largest(value.numpy())):
        raise ConfigError(f"{which} holds numbers that are not finite")
    return value


def _unpickled(data: bytes) -> Any:
    with warnings.catch_warnings():  # of an unusual protocol: what it cannot read it refuses
        warnings.simplefilter("ignore")
        return torch.load(BytesIO(data), map_location="cpu", weights_only=True)


def _few(names: Sequence[str]) -> str:
    return some([shown(name, _MOST_NAME) for name in names], _NAMED)
