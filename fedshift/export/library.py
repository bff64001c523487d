"""``fedshift save --to torchvision`` or ``timm``: weights that the library's own network takes, without FedShift.

A library's weights keep the library's names within a model (``encoder.body.NAME``), and the classifier takes the place
of the library's head. So a file with the library's names is a matter of names. It is tried before it is written: the
library's network is made, takes the weights with ``strict=True``, and must give the scores that the run's model gives.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchvision import models  # type: ignore[import-untyped]

from fedshift.export import saved, saving, scorer
from fedshift.export.card import cell
from fedshift.export.saving import Wanted
from fedshift.export.scorer import Scorer
from fedshift.run import reading
from fedshift_app.config.sections import RunConfig
from fedshift_clients.models import timm_nets, torchvision_nets
from fedshift_core import atomic_io
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError
from fedshift_core.limits import plain, shown, some

BODY, CLASSIFIER = "encoder.body.", "classifier."
ABOUT = "about.json"
#: What ``model.json`` says of a model that takes the mean off itself, and is built by FedShift.
OF_FEDSHIFT = {"fedshift_model", "input", "output", "knowledge", "before", "run", "configuration"}
CLOSE = 1e-4  # of a score, in absolute terms and relative to it
TRIED = 4  # random images
READS = "safetensors.torch.load_file"
MAKES = {"torchvision": "torchvision.models.get_model", "timm": "timm.create_model"}


def save(wanted: Wanted, library: str) -> tuple[Path, list[str]]:
    """Write the model of a run with a library's names into a new folder; return it, and the lines that open it.

    Args:
        wanted: The model.
        library: ``torchvision`` or ``timm``.

    Raises:
        FedShiftError: If there is no such model, or it is not one of the library's.
    """
    record = reading.read(wanted.folder, "save")
    output = wanted.output or record.folder / f"model-{library}"
    saved.check_free(output)
    if wanted.shared:
        raise ConfigError(f"--to {library}: shared parts alone are no model of the library; leave --shared out")
    config, arrays, fields = saving.taken(record, wanted)
    make, named = export(config, arrays, library)
    data = atomic_io.pack(named)
    model = saved.described(fields | saving.described(config, arrays, "safetensors"), data, shown(output))
    lines = [make, f'model.load_state_dict({READS}("{model.file}"))']
    about = {"library": library, "python": lines} | model.model_dump(mode="json", exclude=OF_FEDSHIFT)
    saved.write_folder(output, {model.file: data, ABOUT: saved.as_json(about), saved.CARD: _card(about).encode()})
    return output, lines


def export(config: RunConfig, arrays: Arrays, library: str) -> tuple[str, Arrays]:
    """Return a line of Python that makes a library's network, and the weights that it takes, which is tried.

    Args:
        config: The run's configuration, with the model's own network.
        arrays: Weights by state-dict name, and other arrays that classify.
        library: ``torchvision`` or ``timm``.

    Raises:
        ConfigError: If the network is none of the library's, or the model is more than that network.
    """
    of_library, _, name = config.model.name.partition(":")
    if of_library != library or not name:
        others = f"--to {of_library}" if of_library in MAKES and name else "--format torchscript, onnx or exported"
        raise ConfigError(f"--to {library}: the run's network is {config.model.name}; allowed is {others}")
    own = scorer.rebuilt(config, arrays, "the saved")
    head = str(getattr(own.model.encoder, "head", ""))
    state = {key: tensor.numpy() for key, tensor in own.model.state_dict().items()}
    named = {_library_name(key, head): array for key, array in state.items()}
    more = (torchvision_nets if library == "torchvision" else timm_nets).arguments(name, own.size)
    classes = len(scorer.classes_of(config))
    written = "".join(f", {key}={value!r}" for key, value in more.items())
    made = _plain(library, name, classes, more)
    _try(library, own, made, named)
    return f'model = {MAKES[library]}("{name}", num_classes={classes}{written})', named


def _library_name(key: str, head: str) -> str:
    return key.removeprefix(BODY) if key.startswith(BODY) else f"{head}.{key.removeprefix(CLASSIFIER)}"


def _plain(library: str, name: str, classes: int, more: Mapping[str, Any]) -> nn.Module:
    """Return the library's network with random weights, as the line of Python makes it."""
    make = models.get_model if library == "torchvision" else timm_nets.library().create_model
    with torch.random.fork_rng(devices=[]):
        network: nn.Module = make(name, num_classes=classes, **more)
    return network.eval()


def _try(library: str, own: Scorer, made: nn.Module, named: Arrays) -> None:
    """Refuse weights that the library's network does not take, or with which it gives other scores."""
    tensors = {name: torch.from_numpy(array.copy()) for name, array in named.items()}
    try:
        made.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"--to {library}: the library's network does not take these weights: {plain(reason)}"
        ) from None
    images = torch.rand(TRIED, 3, own.size, own.size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        scores, wanted = made((images - own.get_buffer("mean")) / own.get_buffer("std")), own(images)
    if not torch.allclose(scores, wanted, rtol=CLOSE, atol=CLOSE):
        raise ConfigError(
            f"--to {library}: this run's model classifies in another way than by the scores of its network; --format "
            "exports it as it is"
        )


def _card(about: Mapping[str, Any]) -> str:
    """Return the card: what the file is, and how to use it."""
    code = ["import safetensors.torch", f"import {about['library']}", "", *about["python"], "model.eval()"]
    lines = "\n".join(f"    {line}" for line in code)
    return f"""\
# {shown(about["network"])}, trained by FedShift

Weights with the names of {about["library"]}; nothing of FedShift is needed:

{lines}

- classes, in order: {cell(some(about["classes"], 50, what=f" ({ABOUT})"))}
- images: RGB, {about["size"]} x {about["size"]} pixels ({about["resize"]}), values 0 to 1
- then: (images - mean) / std by channel, mean {about["mean"]}, std {about["std"]}
- run: {cell(about["origin"]["experiment"])}, round {about["origin"]["server_round"]}
"""
