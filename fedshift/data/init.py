"""``fedshift init``: writes an experiment file for the user's images, with comments on its proposals."""

import contextlib
import importlib.util
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from fedshift.run import checking
from fedshift.run.launch import runner
from fedshift_app.config import resolving as configuration
from fedshift_app.config.arguments import not_empty
from fedshift_app.config.dataset_section import FOLDER_NAME, DatasetConfig
from fedshift_app.config.files import doc_page
from fedshift_clients.models import packages
from fedshift_core.errors import ConfigError, DataError, FedShiftError
from fedshift_core.limits import as_found, shown
from fedshift_core.paths import user_path
from fedshift_core.plural import plural
from fedshift_core.spelling import meant
from fedshift_datasets.base import OWN_SPLITS
from fedshift_datasets.io import patients, sites
from fedshift_datasets.quality import checkup
from fedshift_datasets.sets import folders

LOOKED_AT = 500  # images of a site whose size is read
TAKEN = ("dataset.domains", "dataset.classes", "dataset.labels", "dataset.seed", "dataset.test_share", "dataset.hub")
METHODS = ("fedavg", "fedbn", "fedproto", "i2pfl")  # of different kinds, on any network with BatchNorm
FROZEN_METHODS = ("fedavg", "fedproto", "i2pfl", "local")  # likewise, where the encoder and its BatchNorm are frozen
WEIGHTS = "package:efficientnet-lite0"  # that are proposed, where this machine has them
PROJECTION = 256  # width of what trains on their features
UNEQUAL = 3.0  # classes are, where a site has so many times as many training images of one as of another
_SMALL, _MIDDLE, _LARGE = 32, 64, 128  # sizes that are proposed, in pixels


@dataclass(frozen=True)
class Proposal:
    """The proposed settings for a user's images.

    Attributes:
        size: Height and width in pixels.
        network: ``model.name``.
        why: The reasons for both.
        batch: ``train.batch_size``.
        epochs: ``train.epochs``.
        rounds: ``rounds``.
        weights: ``model.weights``; the encoder is then frozen. Empty: the network trains from random weights.
    """

    size: int
    network: str
    why: str
    batch: int
    epochs: int
    rounds: int
    weights: str = ""

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods to compare first."""
        return FROZEN_METHODS if self.weights else METHODS


def propose(sides: Sequence[int], images: Sequence[int], *, pretrained: bool = False) -> Proposal:
    """Return settings for a first run, which trains in minutes to an hour on a CPU.

    Args:
        sides: The shorter side of images, in pixels; empty where they come as arrays.
        images: Training images of each site.
        pretrained: This machine has the weights of :data:`WEIGHTS` and what reads them.
    """
    middle = sorted(sides)[len(sides) // 2] if sides else _SMALL
    if middle < _MIDDLE:
        size, network, why = _SMALL, "resnet10", "the images are small; cnn is faster and weaker"
    elif middle < _LARGE:
        size, network, why = _MIDDLE, "resnet10", "its first layers are made for images up to 64 pixels"
    else:
        size, network = _LARGE, "torchvision:resnet18"
        why = "for images above 64 pixels; 224 shows more and takes three times as long"
    fewest = min(images)
    batch = 16 if fewest < 200 else 32 if fewest < 2000 else 64
    if pretrained and middle >= _LARGE:
        packaged = packages.of(WEIGHTS)
        assert packaged is not None
        return Proposal(
            _LARGE, packaged.network, "with few images, trained weights are worth more than any method", batch,
            epochs=5, rounds=50, weights=WEIGHTS,
        )  # fmt: skip
    return Proposal(size, network, why, batch, epochs=2 if sum(images) < 20_000 else 1, rounds=20)


@dataclass(frozen=True)
class Unequal:
    """The site whose classes differ most in their numbers of training images.

    Attributes:
        site: Its name.
        most: Its most frequent class, and the number of images.
        least: Its rarest class that it has.
    """

    site: str
    most: tuple[str, int]
    least: tuple[str, int]

    @property
    def ratio(self) -> float:
        """How many times as many images the most frequent class has."""
        return self.most[1] / self.least[1]

    def __str__(self) -> str:
        (most, many), (least, few) = self.most, self.least
        return f"{shown(self.site)} has {many} of {shown(most)} and {few} of {shown(least)} (ratio {self.ratio:.3g})"


def unequal(labels: checking.Labels, classes: Sequence[str]) -> Unequal | None:
    """Return the site with the most unequal classes in its training part; None where none is :data:`UNEQUAL`."""
    found = []
    for (site, split), y in labels.items():
        counts = Counter(y.tolist()) if split == "train" else Counter()
        if len(counts) > 1:
            (most, many), *_, (least, few) = counts.most_common()
            found.append(Unequal(site, (classes[most], many), (classes[least], few)))
    worst = max(found, key=lambda site: site.ratio, default=None)
    return worst if worst is not None and worst.ratio >= UNEQUAL else None


def init(folder: str, arguments: Sequence[str]) -> Path:
    """Write an experiment file into a new folder and print the next commands.

    Args:
        folder: The folder; its name is that of the experiment and of the data set.
        arguments: ``data-dir=DIR`` and ``dataset.KEY=VALUE``.

    Returns:
        The file.

    Raises:
        ConfigError: If a key is unknown, or the file is there already.
        DataError: If no sites and classes can be found.
    """
    home = user_path(folder, "DIR")
    name = home.name
    if not FOLDER_NAME.fullmatch(name):
        raise ConfigError(f"DIR: {as_found(name)} cannot be an experiment's name")
    try:
        folders.check_name(name)
    except ValueError as problem:
        raise ConfigError(f"DIR: {problem}") from None
    path = home / f"{name}.yaml"
    if path.exists():
        raise ConfigError(f"{shown(path)} exists already; remove it, or choose another folder")
    dataset = _dataset(arguments)
    survey = folders.survey(dataset.source(), dataset.domains)
    train = {site.domain: site.pictures.number("train") for site in survey.sites if len(site.pictures)}
    images = [train[domain] for domain in dataset.domains if domain in train] or [0]
    proposal = propose(_sides(survey), images, pretrained=has_weights())
    rare = unequal(_labels(survey), survey.classes)
    text = _text(name, dataset, survey, proposal, rare)
    try:
        home.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"DIR: {shown(home)} cannot be written ({error.strerror})") from None
    try:
        config = configuration.resolve({"experiment": str(path)})
        checking.check_shares(config, runner.num_nodes(config, None), _labels(survey), _groups(survey))
    except FedShiftError:
        path.unlink()  # no file that a run would refuse
        raise
    typer.echo(_summary(path, survey, proposal, rare))
    return path


def _labels(survey: folders.Survey) -> checking.Labels:
    """Return the labels of the sites whose images are files, by site and split."""
    return {
        (site.domain, split): listing.labels
        for site in survey.sites
        if len(site.pictures)
        for split, listing in site.listings.items()
    }


def _groups(survey: folders.Survey) -> checking.Groups:
    """Return the patients of the training images of the sites whose images are files."""
    return {site.domain: site.listings["train"].groups for site in survey.sites if "train" in site.listings}


def _dataset(arguments: Sequence[str]) -> DatasetConfig:
    data_dir, dotted = "", []
    for argument in arguments:
        key, sep, value = argument.partition("=")
        if key == "data-dir" and sep:
            data_dir = not_empty(key, value)
        elif key in TAKEN and sep:
            dotted.append(argument)
        else:
            raise ConfigError(
                f"{as_found(argument)}: init accepts data-dir=DIR, and these keys of the section dataset: "
                f"{', '.join(TAKEN)}{meant(key, ('data-dir', *TAKEN))}"
            )
    if not data_dir and not any(argument.startswith("dataset.hub=") for argument in dotted):
        raise ConfigError(f"init needs the key data-dir: a folder with {sites.LAYOUTS}")
    return configuration.resolve_dataset(folders.NAME, data_dir, dotted)


def _sides(survey: folders.Survey) -> list[int]:
    """Return the shorter sides of some images of each site; unreadable images are left out."""
    sides: list[int] = []
    for site in survey.sites:
        step = max(1, len(site.pictures) // LOOKED_AT)
        for item in site.pictures.items[::step]:
            with contextlib.suppress(DataError):  # `fedshift prepare` reports it
                (header,) = checkup.headers([item])
                sides.append(min(header.size))
    return sides


def _text(name: str, dataset: DatasetConfig, survey: folders.Survey, proposal: Proposal, rare: Unequal | None) -> str:
    """Return the text of the file."""
    stated = [f"  {key}: {_quoted(getattr(dataset, key))}" for key in ("labels",) if getattr(dataset, key)]
    if dataset.test_share is not None:
        stated.append(f"  test_share: {dataset.test_share}")
    if dataset.seed:
        stated.append(f"  seed: {dataset.seed}")
    more = "".join(f"{line}\n" for line in stated)
    num_sites, num_classes = plural(len(survey.sites), "site"), plural(len(survey.classes), "class", "classes")
    return f"""\
# Images of {num_sites} and {num_classes}, as `fedshift init` found them:
{chr(10).join(_sites(survey))}
# All other keys, with their defaults, stand in config.yaml of any run folder.
title: {_quoted(f"{name}: {num_sites}, {num_classes}")}
dataset:
  name: {_quoted(name)}          # your word for these images, in tables
  of: folders
  data_dir: {_quoted(dataset.data_dir)}   # a real node has its own
  domains: {_listed(survey_domains(survey))}
  classes: {_listed(survey.classes)}   # in the order of labels; nodes check their folders against it
  size: {proposal.size}           # pixels; images of any size become squares
  resize: squash     # or crop (the middle), or pad (black borders)
  exif: ignore       # apply: turn photographs as their camera noted; `prepare` counts those it concerns
  skip_broken: false # true: continue without images that cannot be read, and name them
{more}{_images(proposal)}allocation:
  counts: {_one_each(survey_domains(survey))}   # simulated nodes of each site
  validation_fraction: 0.1   # to choose a round by: of training images, where a site has no validation ones
{_model(proposal)}train:
  epochs: {proposal.epochs}          # local epochs a round
  batch_size: {proposal.batch}
  lr: 0.01
  momentum: 0.9
  weight_decay: 1.0e-5
{_weights(rare)}method:
  name: fedavg       # `fedshift methods` lists them
keep: best-validation  # the weights of the best round by validation stay, in addition to the last
rounds: {proposal.rounds}
"""


def _sites(survey: folders.Survey) -> list[str]:
    """Return a line of each site: its images, its layout, how its patients are known."""
    sites = []
    for site in survey.sites:
        by_split = {split: site.pictures.number(split) for split in OWN_SPLITS}
        numbers = " + ".join(f"{number} {split}" for split, number in by_split.items() if number)
        patients = f", patients by {' and '.join(map(shown, site.patients_by))}" if site.patients_by else ""
        sites.append(f"#   {shown(site.domain)}: {numbers or 'npz files'} (layout {site.layout}{patients})")
    return sites


def _weights(rare: Unequal | None) -> str:
    """Return the line of ``train.class_weights``; empty where classes are about equal."""
    return "" if rare is None else f"  class_weights: balanced   # training images: {rare}; none weighs images alike\n"


def has_weights() -> bool:
    """Tell whether this machine has the weights that are proposed, and the library of their network."""
    return importlib.util.find_spec("timm") is not None and packages.exists(WEIGHTS)


def _images(proposal: Proposal) -> str:
    if proposal.weights:
        return """\
images:
  crop_padding: 0    # no augmentation: the features of an image are computed once. With
  flip: false        # flip: true, cached_views: 8 keeps those of eight augmented views
"""
    return """\
images:
  crop_padding: 4    # augmentation of training images: a shifted crop,
  flip: true         # and left for right: false where these differ (letters, organs)
"""


def _model(proposal: Proposal) -> str:
    name = f"model:\n  name: {_quoted(proposal.network)}   # {proposal.why}\n"
    if not proposal.weights:
        return (
            f"{name}  # weights: FILE    # pretrained ones, .safetensors or .pth: with few images they are worth more "
            "than any method\n"
        )
    return f"""\
{name}  weights: {_quoted(proposal.weights)}
  freeze: encoder    # it stays as ImageNet left it
  projection: {PROJECTION}    # width of the layer that trains on its features, together with the classifier
  precompute: true   # what is frozen is computed once for each image, and kept
"""


def survey_domains(survey: folders.Survey) -> tuple[str, ...]:
    """Return the names of the sites, in the order of tables."""
    return tuple(site.domain for site in survey.sites)


def _quoted(text: str) -> str:
    """Return a text as YAML in double quotes."""
    escaped = "".join(letter if letter.isprintable() and letter not in '"\\' else _escape(letter) for letter in text)
    return f'"{escaped}"'


def _escape(letter: str) -> str:
    return f"\\{letter}" if letter in '"\\' else f"\\U{ord(letter):08x}"


def _listed(names: Sequence[str]) -> str:
    return "[" + ", ".join(map(_quoted, names)) + "]"


def _one_each(names: Sequence[str]) -> str:
    return "{" + ", ".join(f"{_quoted(name)}: 1" for name in names) + "}"


def _summary(path: Path, survey: folders.Survey, proposal: Proposal, rare: Unequal | None) -> str:
    """Return a summary of the file and the next commands."""
    file = shlex.quote(_as_typed(path))
    sites = ", ".join(shown(name) for name in survey_domains(survey))
    classes = ", ".join(shown(kind) for kind in survey.classes)
    methods = ",".join(proposal.methods)
    elsewhere = doc_page("docs/deploy/deployment.md")
    return f"""\
{shown(path, 4096)}
  sites: {sites}
  classes: {classes}
{_empty_line(survey)}{_unequal_line(rare)}{_patient_lines(survey)}{_left(survey)}
Read it, then:
  fedshift prepare {file}       # check the images
  fedshift sweep {file} method={methods} seed=0,1
                                # compare methods
  fedshift deploy-demo {file}   # the same on SuperNodes of this machine; elsewhere: {elsewhere}"""


def _empty_line(survey: folders.Survey) -> str:
    """Return a line on classes whose folders are empty at all sites; empty where there are none."""
    if any(site.archives for site in survey.sites):  # their labels are not read
        return ""
    there = {label for site in survey.sites for label in site.pictures.labels.tolist()}
    empty = [shown(kind) for label, kind in enumerate(survey.classes) if label not in there]
    kinds = plural(len(empty), "class has", "classes have")
    again = "remove the empty folders and run `fedshift init` again"
    return f"  {kinds} no image at any site: {', '.join(empty)}; {again}\n" if empty else ""


def _unequal_line(rare: Unequal | None) -> str:
    """Return a line on unequal classes and what is proposed; empty where there are none."""
    return (
        ""
        if rare is None
        else f"  unequal classes: of training images {rare}: train.class_weights=balanced is proposed\n"
    )


def _patient_lines(survey: folders.Survey) -> str:
    """Return lines on what tells patients, and on what does not; empty where nobody says anything of them."""
    parts = [patients.Part(site.domain, split, part) for site in survey.sites for split, part in site.listings.items()]
    known = {domain: len(uses) for domain, uses in patients.uses_of_patients(parts).items()}
    lines = [
        f"patients: {known[site.domain]} of {shown(site.domain)} ({' and '.join(map(shown, site.patients_by))})"
        for site in survey.sites
        if site.patients_by
    ]
    lines += patients.lines(parts) + [note for site in survey.sites for note in site.patient_notes]
    return "".join(f"  {line}\n" for line in lines)


def _left(survey: folders.Survey) -> str:
    """Return a line on files that are left out, with the first of them; empty if there are none."""
    left = [*survey.others, *(path for site in survey.sites for path in site.not_taken)]
    notes = [note for site in survey.sites for note in site.notes]
    first = shown(left[0]) if left else notes[0] if notes else ""
    number = len(left) + len(notes)
    return f"  not taken, or noted: {number}, first {first}\n" if number else ""


def _as_typed(path: Path) -> str:
    """Return a path relative to the working folder where it lies below it."""
    working_folder = Path.cwd()
    return str(path.relative_to(working_folder)) if path.is_relative_to(working_folder) else str(path)
