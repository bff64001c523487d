"""``fedshift init``: writes an experiment file for the user's images, with comments on its proposals."""

import contextlib
import importlib.util
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from fedshift.data.prepare import of_data_set
from fedshift.run import checking
from fedshift.run.launch import runner
from fedshift.run.texts import filled
from fedshift_app.config import resolving
from fedshift_app.config.dataset_section import FOLDER_NAME, DatasetConfig
from fedshift_app.config.files import doc_page
from fedshift_clients.models import packages
from fedshift_core.errors import ConfigError, DataError, FedShiftError
from fedshift_core.features import ours, said
from fedshift_core.json_text import text_of
from fedshift_core.limits import as_found, shown
from fedshift_core.paths import user_path
from fedshift_core.plural import plural
from fedshift_core.registry import imported
from fedshift_core.tasks import CLASSIFICATION, Task
from fedshift_datasets.base import OWN_SPLITS, Source
from fedshift_datasets.io import layout, patients
from fedshift_datasets.quality import checkup
from fedshift_datasets.sets import folders
from fedshift_datasets.sets.folders import Survey

LOOKED_AT = 500  # images of a site whose size is read
TAKEN = ("dataset.domains", "dataset.classes", "dataset.labels", "dataset.seed", "dataset.test_share", "dataset.hub")
FROZEN_METHODS = ("fedavg", "fedproto", "i2pfl", "local")  # to compare, where the encoder and its BatchNorm are frozen
WEIGHTS = "package:efficientnet-lite0"  # that are proposed, where this machine has them
UNEQUAL = 3.0  # classes are, where a site has so many times as many training images of one as of another
_SMALL, _MIDDLE, _LARGE = 32, 64, 128  # sizes that are proposed, in pixels


@dataclass(frozen=True)
class Proposal:
    """The proposed settings for a user's images, by their keys; an encoder with ``weights`` is frozen."""

    size: int
    network: str
    why: str
    batch: int
    epochs: int
    rounds: int = 20
    weights: str = ""


def propose(
    sides: Sequence[int], images: Sequence[int], *, pretrained: bool = False, task: Task = CLASSIFICATION
) -> Proposal:
    """Return settings for a first run, which trains in minutes to an hour on a CPU.

    Args:
        sides: The shorter side of images, in pixels; empty where they come as arrays.
        images: Training images of each site.
        pretrained: This machine has the weights of :data:`WEIGHTS` and what reads them.
        task: What they are for.
    """
    middle = sorted(sides)[len(sides) // 2] if sides else _SMALL
    batch = 16 if min(images) < 200 else 32 if min(images) < 2000 else 64
    size = _SMALL if middle < _MIDDLE else _MIDDLE if middle < _LARGE else _LARGE
    if task.network:
        return Proposal(size, task.network, task.why, batch, epochs=2)
    if pretrained and middle >= _LARGE and (packaged := packages.of(WEIGHTS)):
        why = "with few images, trained weights are worth more than any method"
        return Proposal(_LARGE, packaged.network, why, batch, epochs=5, rounds=50, weights=WEIGHTS)
    if middle < _MIDDLE:
        network, why = "resnet10", "the images are small; cnn is faster and weaker"
    elif middle < _LARGE:
        network, why = "resnet10", "its first layers are made for images up to 64 pixels"
    else:
        network = "torchvision:resnet18"
        why = "for images above 64 pixels; 224 shows more and takes three times as long"
    return Proposal(size, network, why, batch, epochs=2 if sum(images) < 20_000 else 1)


def unequal(labels: checking.Labels, classes: Sequence[str]) -> str:
    """Return a text on the site with the most unequal classes in its training part; empty below :data:`UNEQUAL`."""
    worst, text = UNEQUAL, ""
    for (site, split), y in labels.items():
        counts = Counter(y.tolist()) if split == "train" else Counter[int]()
        if len(counts) > 1:
            (most, many), *_, (least, few) = counts.most_common()
            if many / few >= worst:
                worst, names = many / few, (shown(classes[most]), shown(classes[least]))
                text = f"{shown(site)} has {many} of {names[0]} and {few} of {names[1]} (ratio {worst:.3g})"
    return text


def init(folder: str, arguments: Sequence[str] | None) -> Path:
    """Write an experiment file into a new folder, print the next commands, and return the file.

    Args:
        folder: The folder; its name is that of the experiment and of the data set.
        arguments: ``data-dir=DIR`` and ``dataset.KEY=VALUE``.

    Raises:
        ConfigError: If a key is unknown, or the file is there already.
        DataError: If no sites and classes can be found.
    """
    home = user_path(folder, "DIR")
    name, path = home.name, home / f"{home.name}.yaml"
    try:
        if not FOLDER_NAME.fullmatch(name):
            raise ValueError(f"{as_found(name)} cannot be an experiment's name")
        folders.check_name(name)
    except ValueError as problem:
        raise ConfigError(f"DIR: {problem}") from None
    if path.exists():
        raise ConfigError(f"{shown(path)} exists already; remove it, or choose another folder")
    accepted = f"init accepts data-dir=DIR, and these keys of the section dataset: {', '.join(TAKEN)}"
    data_dir, dotted = of_data_set(arguments or (), accepted, TAKEN)
    if not data_dir and not any(argument.startswith("dataset.hub=") for argument in dotted):
        raise ConfigError(f"init needs the key data-dir: a folder with {layout.LAYOUTS}")
    labels_file = next((text.partition("=")[2] for text in dotted if text.startswith("dataset.labels=")), "")
    task = _task_in(Source(user_path(data_dir, "data-dir"), labels=labels_file)) if data_dir else CLASSIFICATION
    dotted = [*dotted, *(said(f"dataset.{key}", value) for key, value in task.dataset.items())]
    dataset = resolving.resolve_dataset(folders.NAME, data_dir, dotted)
    survey = folders.survey(dataset.source(), dataset.domains)
    images = [site.pictures.number("train") for site in survey.sites if len(site.pictures)]
    labels = {
        (site.domain, split): listing.labels
        for site in survey.sites
        if len(site.pictures)
        for split, listing in site.listings.items()
    }
    proposal = propose(_sides(survey), images or [0], pretrained=has_weights(), task=task)
    rare = unequal(labels, survey.classes)
    try:
        home.mkdir(parents=True, exist_ok=True)
        path.write_text(_text(name, dataset, survey, proposal, rare, task), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"DIR: {shown(home)} cannot be written ({error.strerror})") from None
    try:
        config = resolving.resolve({"experiment": str(path)})
        groups = {site.domain: site.listings["train"].groups for site in survey.sites if "train" in site.listings}
        checking.check_shares(config, runner.num_nodes(config, None), labels, groups)
    except FedShiftError:
        path.unlink()  # no file that a run would refuse
        raise
    typer.echo(_summary(path, survey, proposal, rare, task))
    return path


def _task_in(source: Source) -> Task:
    """Return the task that the images are for."""
    tasks = (room.task for room in ours() if room.task)
    return next((task for task in tasks if task.found and imported(task.found)(source)), CLASSIFICATION)


def _sides(survey: Survey) -> list[int]:
    """Return the shorter sides of some images of each site; unreadable images are left out."""
    sides: list[int] = []
    for site in survey.sites:
        for item in site.pictures.items[:: max(1, len(site.pictures) // LOOKED_AT)]:
            with contextlib.suppress(DataError):  # `fedshift prepare` reports it
                (header,) = checkup.headers([item])
                sides.append(min(header.size))
    return sides


def has_weights() -> bool:
    """Tell whether this machine has the weights that are proposed, and the library of their network."""
    return importlib.util.find_spec("timm") is not None and packages.exists(WEIGHTS)


def _text(name: str, dataset: DatasetConfig, survey: Survey, proposal: Proposal, rare: str, task: Task) -> str:
    """Return the text of the file."""
    return filled(
        Path(__file__).with_name("experiment.yaml.j2"),
        name=name,
        dataset=dataset,
        survey=survey,
        sites=_sites(survey),
        proposal=proposal,
        pretrained=WEIGHTS,
        rare=rare,
        task=task,
        json=text_of,
    )


def _sites(survey: Survey) -> str:
    """Return a line of each site: its images, its layout, how its patients are known."""
    lines = ""
    for site in survey.sites:
        by_split = {split: site.pictures.number(split) for split in OWN_SPLITS}
        numbers = " + ".join(f"{number} {split}" for split, number in by_split.items() if number) or "npz files"
        by = f", patients by {_and(site.patients_by)}" if site.patients_by else ""
        lines += f"#   {shown(site.domain)}: {numbers} (layout {site.layout}{by})\n"
    return lines


def _and(names: Iterable[str]) -> str:
    return " and ".join(map(shown, names))


def _summary(path: Path, survey: Survey, proposal: Proposal, rare: str, task: Task) -> str:
    """Return a summary of the file and the next commands."""
    file = shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))
    methods = ",".join(FROZEN_METHODS if proposal.weights else task.methods)
    elsewhere = doc_page("docs/deploy/deployment.md")
    notes = "".join(f"\n  {line}" for line in _notes(survey, rare))
    return f"""\
{shown(path, 4096)}
  sites: {", ".join(shown(site.domain) for site in survey.sites)}
  classes: {", ".join(map(shown, survey.classes))}{notes}

Read it, then:
  fedshift prepare {file}       # check the images
  fedshift sweep {file} method={methods} seed=0,1
                                # compare methods
  fedshift deploy-demo {file}   # the same on SuperNodes of this machine; elsewhere: {elsewhere}"""


def _notes(survey: Survey, rare: str) -> list[str]:
    """Return lines on empty and on unequal classes, on patients, and on files that are left out."""
    lines, every = [], survey.sites
    there = {label for site in every for label in site.pictures.labels.tolist()}
    empty = [shown(kind) for label, kind in enumerate(survey.classes) if label not in there]
    if empty and not any(site.unread for site in every):
        kinds = plural(len(empty), "class has", "classes have")
        remedy = "remove the empty folders and run `fedshift init` again"
        lines.append(f"{kinds} no image at any site: {', '.join(empty)}; {remedy}")
    if rare:
        lines.append(f"unequal classes: of training images {rare}: train.class_weights=balanced is proposed")
    parts = [patients.Part(site.domain, split, part) for site in every for split, part in site.listings.items()]
    uses = patients.uses_of_patients(parts)
    for site in every:
        if site.patients_by:
            lines.append(f"patients: {len(uses[site.domain])} of {shown(site.domain)} ({_and(site.patients_by)})")
    lines += [*patients.lines(parts), *(note for site in every for note in site.patient_notes)]
    left = [shown(path) for path in (*survey.others, *(path for site in every for path in site.not_taken))]
    if left := [*left, *(note for site in every for note in site.notes)]:
        lines.append(f"not taken, or noted: {len(left)}, first {left[0]}")
    return lines
