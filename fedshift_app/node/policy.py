"""What the owner of a real node allows (``fedshift supernode --policy FILE``): the file's keys, and how it is read.

A node obeys the run's configuration (``fedshift_app.node.requests``) and its owner's policy. What a policy does to a
message and to its reply is in :mod:`fedshift_app.node.owner`. A simulated node has no owner, and so no policy.
"""

import functools
import hashlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from fedshift_app.config import registry
from fedshift_app.config.error_messages import explained
from fedshift_app.node import own_code
from fedshift_clients.models.catalog import NETWORKS, family_of
from fedshift_core import yaml_files
from fedshift_core.errors import ConfigError
from fedshift_core.limits import WHOLE_PATH, as_found, shown
from fedshift_core.params import ConfigModel
from fedshift_core.secure.identity import FINGERPRINT

POLICY, POLICY_SHA256 = "policy", "policy-sha256"  # keys of ``--node-config``
STRICT, OPEN = "strict", "open"  # the built-in policies
ANY = "any"
GIBIBYTE = 2**30


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


#: ``any``, or a list of names.
Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]


def _like(pattern: re.Pattern[str], wanted: str) -> AfterValidator:
    """Return a check that each of some texts is like a pattern."""

    def check(texts: tuple[str, ...]) -> tuple[str, ...]:
        for text in texts:
            if not pattern.fullmatch(text):
                raise ValueError(f"{as_found(text)} is {wanted}")
        return texts

    return AfterValidator(check)


class _Section(ConfigModel):
    """A part of a policy."""


class RequiredNoise(_Section):
    """The noise that a run must have (its section ``privacy``)."""

    name: Literal["local-dp", "dp-sgd"] = Field("local-dp", description="The mechanism (`privacy.name` of the run).")
    epsilon: float = Field(
        gt=0,
        description="Most epsilon that a run may spend if the node trains in all its rounds. Repeated ones count "
        "again.",
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="Largest delta of a run.")


class Budget(_Section):
    """What all runs together may spend of the images' privacy."""

    epsilon: float = Field(gt=0, description="Most epsilon of all runs together. A run without noise is refused.")
    delta: float = Field(1e-5, gt=0, lt=1, description="The delta at which that epsilon is computed.")


class SecureSums(_Section):
    """The secure sums that a run must have."""

    nodes: int = Field(ge=2, description="Least number of nodes behind a sum that the server sees.")
    least: float = Field(
        3.0,
        ge=1,
        description="Least effective number of these nodes by their weights (`federation.secure_sums_least`).",
    )
    trusted: Annotated[
        tuple[str, ...], _like(FINGERPRINT, "no fingerprint; expected SHA256: and 43 letters of base64")
    ] = Field(
        (),
        description="Nodes that may be in a sum with this one: fingerprints of their public keys, as `ssh-keygen -lf "
        "NAME.pub` prints them; `[]` for any that the server names.",
    )


class RunCode(_Section):
    """The code that a run may bring; it never runs on the node."""

    trusted: Annotated[
        tuple[str, ...], _like(own_code.HASH, "no hash of code; expected SHA256: and 64 digits of 0-9a-f")
    ] = Field(
        (),
        description="Hashes of other code, as `fedshift version --bundle` prints them where the run is submitted: the "
        "node answers such runs, too, with its own code.",
    )


class Partition(_Section):
    """How a node's images are parted for good, by keys of a run; null: as the first run that says it has it."""

    validation_fraction: float | None = Field(
        None,
        ge=0,
        lt=1,
        title="allocation.validation_fraction",
        description="Share of the training images that a round is chosen by.",
    )
    test_images: dict[str, int] | None = Field(
        None,
        title="evaluate.fraction, as test images",
        description="By domain, the size of a sample of test images.",
    )
    bn_images: int | None = Field(
        None,
        gt=0,
        title="evaluate.bn_images",
        description="Size of a sample of training images for BatchNorm.",
    )
    image_share: float | None = Field(
        None,
        ge=0,
        le=1,
        title="statistics.image_share",
        description="Share of the images that is told of one by one.",
    )
    data_set: str | None = Field(None, title="dataset.of", description="The data set that reads the images.")
    classes: tuple[str, ...] | None = Field(None, title="dataset.classes", description="All classes, in their order.")
    classes_stated: bool | None = Field(
        None,
        title="dataset.classes_stated",
        description="Whether somebody stated the order of the classes.",
    )
    labels: str | None = Field(None, title="dataset.labels", description="The table that names the images.")
    patients: str | None = Field(None, title="dataset.patients", description="Patients whose images stay together.")
    test_share: float | None = Field(
        None,
        gt=0,
        lt=1,
        title="dataset.test_share",
        description="Test part, where the images do not say.",
    )
    split_seed: int | None = Field(None, title="dataset.seed", description="Seed of that split.")
    skip_broken: bool | None = Field(
        None,
        title="dataset.skip_broken",
        description="Whether images that cannot be read are left out.",
    )

    def stated(self) -> dict[str, Any]:
        """Return what is not null, as JSON has it; samples of test images by domain (``test_images.NAME``)."""
        values = self.model_dump(mode="json", exclude_none=True)
        samples = values.pop("test_images", {})
        return values | {f"test_images.{domain}": size for domain, size in samples.items()}


class Scores(_Section):
    """How many scores of models a server may ask for: each tells a little of the images behind it."""

    per_run: int | None = Field(1000, gt=0, description="Most questions of a run with other weights; null for any.")
    runs_per_day: int | None = Field(20, gt=0, description="Most runs with scores within 24 hours; null for any.")


class Policy(_Section):
    """What a node's owner allows. The defaults are the policy ``strict``."""

    methods: Names = Field((ANY,), description="Methods that a run may use: `any`, or a list of names.")
    networks: Names = Field((ANY,), description="Networks that a run may use: `any`, or a list of names.")
    contributions: Names = Field(
        (ANY,),
        description="What a method may send in addition to weights, by the names of its arrays: `any`, or a list; `[]` "
        "for weights alone.",
    )
    features: Names = Field(
        (), description="Features of other packages that a run may use (its section `features`): `any`, or a list."
    )
    weights: Literal["any", "masked"] = Field(
        "any",
        description="How weights leave the node: `any` way, or `masked`, only inside sums over nodes "
        "(`federation.secure_sums`); a run without them is refused.",
    )
    least_images: int = Field(
        5,
        ge=1,
        le=10**6,
        description="Least number of images behind a number that leaves the node: of a class behind a prototype or a "
        "count, of a domain behind a score. 1 hides nothing.",
    )
    figures: bool = Field(
        False,
        description="Whether confusion matrices, histograms of scores and calibration leave the node "
        "(`evaluate.figures`); false: a run goes on without them.",
    )
    statistics: bool = Field(
        False,
        description="Whether means, variances, percentiles and histograms of the training images leave the node, once "
        "in a run (`statistics.share`); false: a run goes on without them.",
    )
    image_statistics: bool = Field(
        False,
        description="Whether channel means and deviations of single training images leave the node, once in a run, for "
        "the other nodes (`statistics.image_share`); needs `statistics: true`. false: a run goes on without them.",
    )
    largest_in: int | None = Field(GIBIBYTE, gt=0, description="Largest message to the node in bytes; null for any.")
    largest_out: int | None = Field(GIBIBYTE, gt=0, description="Largest message from the node in bytes; null for any.")
    rounds_per_day: int | None = Field(
        None, gt=0, description="Most rounds in which the node trains within 24 hours, over all runs; null for any."
    )
    partition: Partition | None = Field(
        None,
        description="How the images are parted for good where least_images is above 1; a run that asks for other parts "
        "is refused. A value here replaces the one that was kept from the first run (`fedshift policy explain`).",
    )
    scores: Scores | None = Field(
        Scores(), description="Scores that a server may ask for, in questions with other weights; null for any number."
    )
    privacy: RequiredNoise | None = Field(None, description="Noise that a run must have; null for none.")
    budget: Budget | None = Field(
        None, description="What all runs together may spend of the images' privacy; null for no limit."
    )
    secure_sums: SecureSums | None = Field(None, description="Secure sums that a run must have; null for none.")

    code: RunCode | None = Field(
        None, description="Runs of other code than this node's that it answers; null for none: each is refused."
    )

    @model_validator(mode="before")
    @classmethod
    def _check_shape(cls, value: Any) -> Any:
        return {} if value is None else value

    @model_validator(mode="after")
    def _check_statistics(self) -> "Policy":
        if self.image_statistics and not self.statistics:
            raise ValueError("image_statistics: true needs statistics: true, found false")
        return self

    def allows(self, key: Literal["methods", "networks", "contributions", "features"], name: str) -> bool:
        """Tell whether a name is among those of a key."""
        names: tuple[str, ...] = getattr(self, key)
        return names == (ANY,) or name in names


BUILT_IN = {
    STRICT: Policy(),
    OPEN: Policy(
        features=(ANY,), least_images=1, figures=True, statistics=True, image_statistics=True, largest_in=None,
        largest_out=None, scores=None,
    ),
}  # fmt: skip


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
    name = shown(path, WHOLE_PATH)
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())  # of what is read, not of what has the name a moment later
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"policy {name}: it is no file; expected a YAML file, {STRICT} or {OPEN}")
            if status.st_uid != os.geteuid():
                raise ConfigError(
                    f"policy {name}: it belongs to user {status.st_uid}, expected is {os.geteuid()}, who runs the node"
                )
            if status.st_mode & 0o022:
                raise ConfigError(
                    f"policy {name}: others can write it (mode {stat.S_IMODE(status.st_mode):04o}): chmod go-w"
                )
            data = file.read(yaml_files.MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"policy {name}: cannot be read: {error.strerror}; expected a YAML file, {STRICT} or {OPEN}"
        ) from None
    return data


@functools.lru_cache(maxsize=4)
def _parsed(source: str, data: bytes) -> Policy:
    name = f"policy {shown(source, WHOLE_PATH)}"
    try:
        content = yaml_files.parse(data.decode())
    except ValueError as error:
        raise ConfigError(f"{name}: cannot be read as YAML: {error}") from None
    if content is not None and not isinstance(content, dict):
        raise ConfigError(f"{name}: expected a mapping of keys to values, found {as_found(content)}")
    try:
        policy = Policy.model_validate(content)
        _check_names(policy)
    except ValidationError as error:
        raise explained(error, model=Policy).under(name) from None
    except ConfigError as error:
        raise error.under(name) from None
    return policy


def _check_names(policy: Policy) -> None:
    """Refuse names that nothing has: a misspelt one would refuse every run.

    Raises:
        ConfigError: With what there is.
    """
    for key in ("methods", "networks", "contributions", "features"):
        names = getattr(policy, key)
        if ANY in names and len(names) > 1:
            raise ConfigError(f"{key}: {ANY} stands alone, found {as_found(list(names))}")
        if key in ("methods", "networks") and not names:
            raise ConfigError(f"{key}: an empty list would refuse every run; expected names, or {ANY}")
    for name in policy.methods:
        if name != ANY:
            registry.METHODS.named(name, "methods")
    for name in policy.networks:
        if name != ANY and family_of(name) is None:  # a library would have to be imported
            NETWORKS.named(name, "networks")
    for name in policy.features:
        if name != ANY:
            registry.FEATURES.named(name, "features")
