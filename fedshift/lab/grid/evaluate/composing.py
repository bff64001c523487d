"""Composes the configuration by which a model is scored: the model's own, with the images that the user names."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedshift.lab.grid.evaluate.keys import KEYS, SECTIONS, allowed
from fedshift.lab.grid.evaluate.models import Model
from fedshift_app.config import folder_classes
from fedshift_app.config import resolving as configuration
from fedshift_app.config.arguments import parse_arguments
from fedshift_app.config.layers import parse_set
from fedshift_app.config.sections import RunConfig
from fedshift_core import atomic_io, json_text, same_names
from fedshift_core.errors import ConfigError, DataError
from fedshift_core.features import task_of
from fedshift_core.limits import as_found, shortened, shown
from fedshift_core.wire.names import DEPLOYMENT
from fedshift_core.yaml_files import as_yaml

#: Settings of images that belong to the model, where its data set is exchanged.
OF_IMAGES = ("resize", "window", "exif")


@dataclass(frozen=True)
class Request:
    """What the user asked for, besides the models.

    Attributes:
        flat: Keys of the run's configuration.
        launch: Keys that decide the launch.
        given: The dotted ones among ``flat``.
    """

    flat: Mapping[str, Any]
    launch: Mapping[str, Any]
    given: Mapping[str, Any]


@dataclass(frozen=True)
class Composed:
    """The run that scores a model.

    Attributes:
        model: The model.
        config: The configuration.
        file: The experiment's file that holds it.
        usual_nodes: How many nodes there are by default; None: as the allocation says.
    """

    model: Model
    config: RunConfig
    file: Path
    usual_nodes: int | None


def read(arguments: Sequence[str]) -> Request:
    """Read the keys of the command.

    Raises:
        ConfigError: With a key that is unknown or that would change the model.
    """
    flat, launch = parse_arguments(list(arguments))
    given = parse_set(str(flat.get("set", "")))
    refused = [key for key in (*flat, *given) if not allowed(key)]
    if refused:
        sections = ", ".join(section.rstrip(".") for section in SECTIONS)
        raise ConfigError(
            f"{as_found(refused[0])}: a model is evaluated as it is; allowed are keys of {sections}, "
            f"{', '.join(KEYS)}, seed, tracking, output-dir, and those that launch a run"
        )
    return Request(flat, launch, given)


def compose(model: Model, request: Request, file: Path) -> Composed:
    """Return the run that scores a model, and write it into an experiment's file.

    Raises:
        ConfigError: If a key is wrong, or model and images do not go together.
        DataError: If the images are missing.
    """
    sections, kept, about = dict(model.sections), model.config.dataset, model.about
    named = str(request.given.get("dataset.name", "") or request.flat.get("dataset", ""))
    other = named not in ("", kept.name)
    if (size := request.given.get("dataset.size", about.size)) != about.size:
        raise ConfigError(
            f"dataset.size: the model {shown(model.label)} takes images of {about.size} pixels, found "
            f"{as_found(size)}; leave the key out"
        )
    own: dict[str, Any] = {}
    if (there := _own_domains(model, request, named if other else "")) is not None:
        own = {"dataset.classes": list(about.classes), "dataset.domains": there}
    domains = own.get("dataset.domains") or request.given.get("dataset.domains") or ([] if other else kept.domains)
    same_domains = tuple(domains) == tuple(kept.domains)
    if other:
        own |= {"dataset.size": about.size, "images.mean": list(about.mean), "images.std": list(about.std)}
        own |= {f"dataset.{key}": getattr(kept, key) for key in OF_IMAGES if f"dataset.{key}" not in request.given}
        del sections["allocation"], sections["shift"]
        sections["model"] = sections["model"] | {"precompute": False}
    elif not same_domains:  # without what the allocation says of single ones
        left = {key: value for key, value in sections["allocation"].items() if not isinstance(value, Mapping)}
        sections["allocation"] = left | {"held_out": [name for name in left.get("held_out", ()) if name in domains]}
    more = " ".join(shlex.quote(f"{key}={json_text.text_of(value)}") for key, value in own.items())
    flat = {key: value for key, value in request.flat.items() if key != "output-dir"}
    _write(file, sections)
    config = configuration.resolve(flat | {"experiment": str(file), "set": f"{flat.get('set', '')} {more}".strip()})
    known = config.dataset.known().classes
    if [*map(same_names.key, known)] != [*map(same_names.key, about.classes)]:
        raise _other_classes(model, config.dataset.name, known)
    _write(file, config.model_dump(mode="json"))
    dealt = any(key.startswith("allocation.") for key in request.given)
    as_before = same_domains and not dealt and not other and about.origin.engine != DEPLOYMENT
    return Composed(model, config, file, about.origin.nodes if as_before else None)


def _write(file: Path, sections: Mapping[str, Any]) -> None:
    atomic_io.write_atomically(file, as_yaml({"resolved": sections}))


def _own_domains(model: Model, request: Request, other: str) -> list[str] | None:
    """Return the domains of a user's own images in the folder that the user names; None for other data sets.

    Those of the model's run come first. ``other`` names another data set than the model's; empty for the same.

    Raises:
        ConfigError: If there are classes that the model does not know.
        DataError: If there are no images.
    """
    kept, classes = model.config.dataset, model.about.classes
    typed = {key.removeprefix("dataset."): value for key, value in request.given.items() if key.startswith("dataset.")}
    base = {"name": other} if other else kept.model_dump(mode="json")
    data_dir = str(request.flat.get("data-dir", "") or request.given.get("dataset.data_dir", ""))
    own = task_of(model.about.task).dataset  # whose classes no folder is named after
    section = base | dict(own) | {"domains": ()} | typed | {"data_dir": data_dir, "classes": ()}
    if not data_dir or folder_classes.dataset(str(section["name"]), section.get("of", "")).own is None:
        return None
    try:
        found = folder_classes.filled(section | ({"classes": classes} if own else {}))
        if any(same_names.place(name, classes) is None for name in found["classes"]):
            raise _other_classes(model, data_dir, found["classes"])
    except DataError:  # labels that are numbers: the model's classes say what they mean, or the images are missing
        found = folder_classes.filled(section | {"classes": classes})
    there = list(found["domains"])
    if "dataset.domains" in request.given:
        return there
    first = [name for name in kept.domains if same_names.place(name, there) is not None]
    return [*first, *(name for name in there if same_names.place(name, first) is None)]


def _other_classes(model: Model, where: str, found: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"classes: {shown(where)} has {shortened(', '.join(found))}; the model {shown(model.label)} knows "
        f"{shortened(', '.join(model.about.classes))}, in this order"
    )
