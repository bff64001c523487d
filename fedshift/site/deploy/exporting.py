"""Writes each node's images into its own folder, for real SuperNodes."""

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedshift.run.launch import credentials, runner
from fedshift_app.config.sections import RunConfig
from fedshift_app.node.data import (
    Place,
    given_validation,
    own_images,
    public_images,
    test_images,
    train_places,
    uncorrupted,
)
from fedshift_core import atomic_io, private_files, same_names
from fedshift_core.errors import ConfigError
from fedshift_core.limits import shown
from fedshift_core.paths import user_path
from fedshift_core.seeding import generator
from fedshift_datasets import catalog
from fedshift_datasets.base import ImageSet, Split
from fedshift_datasets.io import npz
from fedshift_datasets.partition import shares

_QUOTES = "'\"\\"
Images = dict[tuple[str, Split], ImageSet]  # by domain and split


@dataclass(frozen=True)
class NodeFolder:
    """A node's folder: ``<domain>_{train,test}.npz``, maybe ``<domain>_validation.npz`` and the public set.

    With ``allocation.mixing`` it has ``<domain>_train.npz`` of ``others`` too.
    """

    path: Path
    domain: str
    index: int
    others: tuple[str, ...] = ()

    @property
    def node_config(self) -> str:
        """The node's ``--node-config``: its domains, home first."""
        domains = ",".join((self.domain, *self.others))
        return f'domain="{domains}" data-dir="{self.path}" partition-id={self.index}'


def node_name(index: int, domain: str) -> str:
    """Return the name of a node's folder, key and service: ``node-<index>-<domain>`` in plain ASCII.

    Other characters become a dash: a site may have any name that its people use, a key's file may not. The index alone
    makes the name unique.
    """
    part = re.sub(r"[^A-Za-z0-9._-]+", "-", domain).strip("-")
    name = f"node-{index}-{part}" if part else f"node-{index}"
    return name[: credentials.MOST_NODE_NAME]


def export(config: RunConfig, requested_nodes: int | None, output: Path) -> list[NodeFolder]:
    """Write the images of each node of an experiment.

    The training images are the node's share in simulation, in the same order. The test
    images of a domain are divided among its nodes, so that their scores add up, or are those drawn for
    the node (``shift.label_mix``).

    Raises:
        ConfigError: If ``output`` exists already, or its name cannot stand in a node's configuration.
        DataError: If images are missing or too few, or cannot be written.
    """
    output = user_path(output, "--output")
    if not str(output).isprintable() or any(mark in str(output) for mark in _QUOTES):
        raise ConfigError(
            f"--output {shown(output)} cannot be part of the command that starts a node; allowed are printable names "
            "without quotation marks and backslashes"
        )
    if output.exists():
        raise ConfigError(f"{shown(output)} exists already; choose another folder, or remove it")
    number = runner.num_nodes(config, requested_nodes)
    dealt = config.allocation.deal(config.dataset.domains, number, config.seed)
    undivided = config.allocation.model_copy(update={"validation_fraction": 0.0})
    divided, config = config, config.model_copy(update={"allocation": undivided})  # holdings are cached by allocation
    cfg, classes = config.dataset, config.dataset.known().classes
    places = [Place(domain, i, number, cfg.source(), shared=True, threads=0) for i, domain in enumerate(dealt)]
    folders = [
        NodeFolder(output / node_name(i, where.domain), where.domain, i, _others(config, where))
        for i, where in enumerate(places)
    ]
    public = None
    if cfg.public is not None:
        public = public_images(cfg, config.allocation, cfg.source(), tuple(dict.fromkeys(dealt)), config.seed)
    # All or nothing: a folder that exists is complete. It is made in a new one: nothing of a killed export is in it.
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export-", suffix=atomic_io.PART, dir=output.parent) as own:
        part = Path(own) / output.name
        private_files.make_folder(part)
        for folder, where in zip(folders, places, strict=True):
            inside = part / folder.path.name
            for (domain, split), images in _unnamed(_images(config, divided, where, dealt)).items():
                npz.write(inside / f"{domain}_{split}.npz", images, classes)
            if public is not None:
                npz.write(inside / f"{catalog.PUBLIC}_train.npz", public.but(groups=None, spacing=None), classes)
        part.rename(output)
    return folders


def supernode_command(folder: NodeFolder) -> str:
    """Return the command that starts this node's SuperNode."""
    security = f"--root-certificates ca.crt --auth-supernode-private-key {folder.path.name}.key"
    return f"fedshift supernode {security} --superlink HOST:PORT --node-config '{folder.node_config}'"


def _others(config: RunConfig, where: Place) -> tuple[str, ...]:
    """Return the domains besides its home of which a node holds images (``allocation.mixing``).

    Raises:
        ConfigError: If it is left no image of its home.
    """
    home, *others = train_places(config, where)
    if home != where.domain:
        raise ConfigError(
            f"allocation.mixing={config.allocation.mixing:g} leaves node {where.partition_id} no image of its home "
            f"domain {where.domain!r}, which a real node needs; allowed is a smaller part"
        )
    return tuple(others)


def _images(config: RunConfig, divided: RunConfig, where: Place, dealt: Sequence[str]) -> Images:
    """Return the images of one node by domain and split.

    It takes validation images from its training images itself, unless it would divide patients of whom other nodes
    have images too: then it gets those of the simulation.
    """
    own, places, images = own_images(config, where), train_places(config, where), Images()
    if own.train.groups is not None and config.allocation.mixing == 0 and config.dataset.patients == "all":
        own, places = own_images(divided, where), train_places(divided, where)
        images |= {} if own.validation is None else {(where.domain, "validation"): own.validation}
    first = 0
    for domain, held in places.items():
        images[domain, "train"] = own.train.select(np.arange(first, first + len(held)))
        first += len(held)
    images[where.domain, "test"] = own.test or _test(config, where, dealt)
    given = given_validation(config, where)
    return images if given is None else images | {(where.domain, "validation"): given}


def _unnamed(images: Images) -> Images:
    """Return images with numbers in place of the names of their groups, such as patients; only which are alike counts.

    A group has one number in all splits of its domain.
    """
    numbers: dict[tuple[str, str], str] = {}
    unnamed = Images()
    for (domain, split), each in images.items():
        known = [] if each.groups is None else each.groups.tolist()
        groups = [
            name and numbers.setdefault((domain, same_names.patient(name)), str(len(numbers) + 1)) for name in known
        ]
        unnamed[domain, split] = each.but(groups=np.array(groups, np.str_)) if known else each
    return unnamed


def _test(config: RunConfig, where: Place, dealt: Sequence[str]) -> ImageSet:
    """Return a node's part of its domain's test images, of all classes where that is possible."""
    domain, index = where.domain, where.partition_id
    test = test_images(uncorrupted(config), where, domain)  # the real node corrupts them itself
    if config.shift.label_mix == "own":
        return test
    rng = generator(config.seed, f"test-parts-{domain}")
    parts = shares.spread_groups(test.y, test.groups, dealt.count(domain), rng)
    return test.select(parts[dealt[:index].count(domain)])
