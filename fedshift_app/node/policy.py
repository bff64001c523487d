"""What the owner of a real node allows (``fedshift supernode --policy FILE``): the file's keys, and how it is read.

A node obeys the run's configuration (``fedshift_app.node.requests``) and its owner's policy. What a policy does to a
message and to its reply is in :mod:`fedshift_app.node.owner`. A simulated node has no owner, and so no policy.
"""

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fedshift_app.config import registry
from fedshift_app.config.error_messages import explained
from fedshift_app.node import own_code
from fedshift_clients.models.catalog import NETWORKS, family_of
from fedshift_core import yaml_files
from fedshift_core.errors import ConfigError
from fedshift_core.extensions import Registry
from fedshift_core.limits import WHOLE_PATH, as_found, shown
from fedshift_core.params import ConfigModel
from fedshift_core.secure.identity import FINGERPRINT

POLICY, POLICY_SHA256 = "policy", "policy-sha256"  # keys of ``--node-config``
STRICT, OPEN = "strict", "open"  # the built-in policies
ANY = "any"
GIBIBYTE = 2**30


def in_yaml(value: Any) -> str:
    """Return a value of a policy as YAML on one line."""
    content = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    content = ANY if content == (ANY,) else list(content) if isinstance(content, tuple) else content
    text = yaml.safe_dump(content, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6)
    return text.removesuffix("...\n").strip()


def listed(values: Mapping[str, Any]) -> str:
    """Return values by key on one line."""
    return in_yaml(dict(values))[1:-1]


#: What knows the names of a key: a misspelt one would refuse every run.
_KNOWN: dict[str, Registry[Any]] = {
    "methods": registry.METHODS,
    "networks": NETWORKS,
    "features": registry.FEATURES,
}
#: ``any``, or a list of names.
Names = Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]
Some = Annotated[Names, Field(min_length=1)]
Number = Annotated[int | None, Field(gt=0)]
Epsilon = Annotated[float, Field(gt=0)]
Delta = Annotated[float, Field(gt=0, lt=1)]
Share = Annotated[float | None, Field(ge=0, le=1)]


class _Section(ConfigModel, use_attribute_docstrings=True):
    """A part of a policy. What stands under a key is its meaning: in a new file, in words, and on the policy's page."""


class RequiredNoise(_Section):
    """The noise that a run must have (its section ``privacy``)."""

    name: Literal["local-dp", "dp-sgd"] = "local-dp"
    """The mechanism (`privacy.name` of the run)."""
    epsilon: Epsilon
    """Most epsilon that a run may spend if the node trains in all its rounds. Repeated ones count again."""
    delta: Delta = 1e-5
    """Largest delta of a run."""


class Budget(_Section):
    """What all runs together may spend of the images' privacy."""

    epsilon: Epsilon
    """Most epsilon of all runs together. A run without noise is refused."""
    delta: Delta = 1e-5
    """The delta at which that epsilon is computed."""


class SecureSums(_Section):
    """The secure sums that a run must have."""

    nodes: Annotated[int, Field(ge=2)]
    """Least number of nodes behind a sum that the server sees."""
    least: Annotated[float, Field(ge=1)] = 3.0
    """Least effective number of these nodes by their weights (`federation.secure_sums_least`)."""
    trusted: tuple[Annotated[str, Field(pattern=f"^{FINGERPRINT.pattern}$")], ...] = ()
    """Nodes that may be in a sum with this one: fingerprints of their public keys, as `ssh-keygen -lf NAME.pub` prints
    them; `[]` for any that the server names."""


class RunCode(_Section):
    """The code that a run may bring; it never runs on the node."""

    trusted: tuple[Annotated[str, Field(pattern=f"^{own_code.HASH.pattern}$")], ...] = ()
    """Hashes of other code, as `fedshift version --bundle` prints them where the run is submitted: the node answers
    such runs, too, with its own code."""


class Partition(_Section):
    """How a node's images are parted for good, by keys of a run; null: as the first run that says it has it."""

    validation_fraction: Annotated[Share, Field(lt=1)] = None
    """Share of the training images that a round is chosen by."""
    test_images: dict[str, int] | None = None
    """By domain, the size of a sample of test images."""
    bn_images: Number = None
    """Size of a sample of training images for BatchNorm."""
    image_share: Share = None
    """Share of the images that is told of one by one."""
    data_set: str | None = None
    """The data set that reads the images."""
    classes: tuple[str, ...] | None = None
    """All classes, in their order."""
    classes_stated: bool | None = None
    """Whether somebody stated the order of the classes."""
    masks: bool | None = None
    """Whether images have masks, which labels and so the split follow."""
    labels: str | None = None
    """The table that names the images."""
    patients: str | None = None
    """Patients whose images stay together."""
    test_share: Annotated[Share, Field(gt=0, lt=1)] = None
    """Test part, where the images do not say."""
    split_seed: int | None = None
    """Seed of that split."""
    skip_broken: bool | None = None
    """Whether images that cannot be read are left out."""

    @staticmethod
    def key_of_run(name: str) -> str:
        """Return the key by which a run says a part."""
        return {
            "validation_fraction": "allocation.validation_fraction",
            "test_images": "evaluate.fraction, as test images",
            "bn_images": "evaluate.bn_images",
            "image_share": "statistics.image_share",
            "data_set": "dataset.of",
            "split_seed": "dataset.seed",
        }.get(name, f"dataset.{name}")

    def stated(self) -> dict[str, Any]:
        """Return what is not null, as JSON has it; samples of test images by domain (``test_images.NAME``)."""
        values = self.model_dump(mode="json", exclude_none=True)
        samples = values.pop("test_images", {})
        return values | {f"test_images.{domain}": size for domain, size in samples.items()}


class Scores(_Section):
    """How many scores of models a server may ask for: each tells a little of the images behind it."""

    per_run: Number = 1000
    """Most questions of a run with other weights; null for any."""
    runs_per_day: Number = 20
    """Most runs with scores within 24 hours; null for any."""


class Policy(_Section):
    """What a node's owner allows. The defaults are the policy ``strict``."""

    methods: Some = (ANY,)
    """Methods that a run may use: `any`, or a list of names."""
    networks: Some = (ANY,)
    """Networks that a run may use: `any`, or a list of names."""
    contributions: Names = (ANY,)
    """What a method may send in addition to weights, by the names of its arrays: `any`, or a list; `[]` for weights
    alone."""
    features: Names = ()
    """Features of other packages that a run may use (its section `features`): `any`, or a list."""
    weights: Literal["any", "masked"] = "any"
    """How weights leave the node: `any` way, or `masked`, only inside sums over nodes (`federation.secure_sums`); a run
    without them is refused."""
    least_images: Annotated[int, Field(ge=1, le=10**6)] = 5
    """Least number of images behind a number that leaves the node: of a class behind a prototype or a count, of a
    domain behind a score; a class with fewer counts as absent. 1 hides nothing."""
    figures: bool = False
    """Whether confusion matrices, histograms of scores and calibration leave the node (`evaluate.figures`); false: a
    run goes on without them."""
    statistics: bool = False
    """Whether means, variances, percentiles and histograms of the training images leave the node, once in a run
    (`statistics.share`); false: a run goes on without them."""
    image_statistics: bool = False
    """Whether channel means and deviations of single training images leave the node, once in a run, for the other nodes
    (`statistics.image_share`); needs `statistics: true`. false: a run goes on without them."""
    largest_in: Number = GIBIBYTE
    """Largest message to the node in bytes; null for any."""
    largest_out: Number = GIBIBYTE
    """Largest message from the node in bytes; null for any."""
    rounds_per_day: Number = None
    """Most rounds in which the node trains within 24 hours, over all runs; null for any."""
    partition: Partition | None = None
    """How the images are parted for good where least_images is above 1; a run that asks for other parts is refused. A
    value here replaces the one that was kept from the first run (`fedshift policy explain`)."""
    scores: Scores | None = Scores()
    """Scores that a server may ask for, in questions with other weights; null for any number."""
    privacy: RequiredNoise | None = None
    """Noise that a run must have; null for none."""
    budget: Budget | None = None
    """What all runs together may spend of the images' privacy; null for no limit."""
    secure_sums: SecureSums | None = None
    """Secure sums that a run must have; null for none."""
    code: RunCode | None = None
    """Runs of other code than this node's that it answers; null for none: each is refused."""

    @field_validator("methods", "networks", "contributions", "features")
    @classmethod
    def _are_known(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if ANY in names and len(names) > 1:
            raise ValueError(f"{ANY} stands alone, found {as_found(list(names))}")
        key = str(info.field_name)
        for name in names if key in _KNOWN else ():
            in_library = key == "networks" and family_of(name) is not None  # which would have to be imported
            if name != ANY and not in_library:
                _KNOWN[key].named(name, key)
        return names

    @model_validator(mode="after")
    def _check_statistics(self) -> "Policy":
        if self.image_statistics and not self.statistics:
            raise ValueError("image_statistics: true needs statistics: true, found false")
        return self

    def allows(self, key: str, name: str) -> bool:
        """Tell whether a name is among those of a key."""
        names: tuple[str, ...] = getattr(self, key)
        return names == (ANY,) or name in names


BUILT_IN = {
    STRICT: Policy(),
    OPEN: Policy(
        features=(ANY,),
        least_images=1,
        figures=True,
        statistics=True,
        image_statistics=True,
        largest_in=None,
        largest_out=None,
        scores=None,
    ),
}


@dataclass(frozen=True)
class Loaded:
    """A policy, and where it is from.

    Attributes:
        policy: What it allows.
        source: The file, or the name of a built-in policy.
        sha256: Of the file; empty of a built-in policy.
    """

    policy: Policy
    source: str
    sha256: str = ""

    def __str__(self) -> str:
        return f"{shown(self.source, WHOLE_PATH)} ({f'SHA-256 {self.sha256}' if self.sha256 else 'built in'})"


def load(source: str) -> Loaded:
    """Return the policy of a file, or a built-in one.

    Raises:
        ConfigError: If the file cannot be read, is not its owner's alone to write, or has a key or value that is not
            allowed.
    """
    if source in BUILT_IN:
        return Loaded(BUILT_IN[source], source)
    data = _read(Path(source))
    return Loaded(_parsed(source, data), source, hashlib.sha256(data).hexdigest())


def _read(path: Path) -> bytes:
    """Return a file that nobody else can write."""
    data, user = b"", os.geteuid()
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())  # of what is read, not of what has the name a moment later
            problems = {
                "it is no file": not stat.S_ISREG(status.st_mode),
                f"it belongs to user {status.st_uid}, expected is {user}, who runs the node": status.st_uid != user,
                f"others can write it (mode {stat.S_IMODE(status.st_mode):04o}): chmod go-w": status.st_mode & 0o022,
            }
            wrong = next((problem for problem, is_so in problems.items() if is_so), "")
            data = b"" if wrong else file.read(yaml_files.MOST_BYTES + 1)
    except OSError as error:
        wrong = f"cannot be read: {error.strerror}"
    if wrong:
        raise ConfigError(f"policy {shown(path, WHOLE_PATH)}: {wrong}; expected a YAML file, {STRICT} or {OPEN}")
    return data


def _parsed(source: str, data: bytes) -> Policy:
    name = f"policy {shown(source, WHOLE_PATH)}"
    try:
        content = yaml_files.parse(data.decode())
    except ValueError as error:
        raise ConfigError(f"{name}: cannot be read as YAML: {error}") from None
    if not isinstance(content, dict | None):
        raise ConfigError(f"{name}: expected a mapping of keys to values, found {as_found(content)}")
    try:
        return Policy.model_validate(content or {})
    except ValidationError as error:
        raise explained(error, model=Policy).under(name) from None
    except ConfigError as error:
        raise error.under(name) from None
