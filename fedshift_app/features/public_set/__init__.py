"""One copy of the public images on all nodes (``dataset.public``)."""

from typing import Any

from pydantic import field_validator

from fedshift_core.features import Case, Feature, FeatureOptions, Key
from fedshift_core.limits import as_found
from fedshift_core.wire import names as wire


class Options(FeatureOptions):
    """The public images."""

    section = "dataset"
    #: A real node brings its copy of the public images.
    public: str | float | None = None
    """Public images that all nodes have and none trains on as its own: a domain outside `dataset.domains`, or a share
    (above 0, below 1) of each domain; null: none.
    """

    @field_validator("public", mode="before")
    @classmethod
    def _domain_or_share(cls, public: Any) -> Any:
        share = isinstance(public, int | float) and not isinstance(public, bool)
        if not (0 < public < 1 if share else public is None or (isinstance(public, str) and public)):
            raise ValueError(f"expected a domain, or a share above 0 and below 1, found {as_found(public)}")
        return public

    @property
    def public_share(self) -> float:
        """The share of the images of each domain that is public; 0 where none is."""
        return self.public if isinstance(self.public, float) else 0.0

    @property
    def public_domain(self) -> str:
        """The domain that is public; empty where none is."""
        return self.public if isinstance(self.public, str) else ""


def _rules(case: Case) -> str:
    public, share = Options.read(case.config).public, Options.read(case.config).public_share
    if share and case.config.allocation.test_on == "domain":
        return (
            f"dataset.public={share:g} needs allocation.test_on=split, found domain: there all images of a domain are "
            "its test; allowed is a domain of the data set that is not among dataset.domains"
        )
    if case.method.client_class().uses_public and public is None:
        return (
            f"dataset.public: the method {case.method.name!r} needs a public set: a domain of the data set that is not "
            "among dataset.domains, or a share of all, such as dataset.public=0.1"
        )
    return ""


FEATURE = Feature(
    "public-set",
    "One copy of the public images on all nodes",
    "dataset.public",
    "fedshift_app.features.public_set.server:PublicSet",
    "fedshift_app.features.public_set.node:PublicSetOnNode",
    place=20,
    options=Options,
    rules=_rules,
    introduction=(
        Key(wire.PUBLIC, "text", "SHA-256 of the node's copy of the public images"),
        Key(wire.NUM_PUBLIC, "int", "number of public images"),
    ),
)
