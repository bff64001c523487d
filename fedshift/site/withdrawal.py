"""``fedshift site withdraw``: the sums of a node's own images, signed, for the operator to take them out of a model."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedshift.export import opening, saved
from fedshift.run.launch import credentials
from fedshift.site import nodes
from fedshift.site.nodes import SiteNode
from fedshift_app.config.sections import RunConfig
from fedshift_app.flower.internals import make_context
from fedshift_app.node import ledger, loading, partition, policy, policy_rules, setup
from fedshift_app.node.place import Place, PolicyError
from fedshift_app.node.policy import Policy
from fedshift_clients.base import RoundInputs
from fedshift_clients.methods.feature_sums import FeatureSumsClient
from fedshift_core import same_names
from fedshift_core.disclosure import CLASS, refuse_images
from fedshift_core.errors import ConfigError
from fedshift_core.limits import MOST_NAME, WHOLE_PATH, plain, shown, some
from fedshift_core.methods.feature_sums import COUNTS, CROSS
from fedshift_core.paths import user_path
from fedshift_core.plural import plural
from fedshift_core.secure import withdrawal
from fedshift_core.secure.identity import Key
from fedshift_core.secure.withdrawal import About
from fedshift_datasets.base import ImageSet

MOST_NAMED = 5  # patients of a message


def withdraw(node: str, *, model: Path, key: Path, patients: Path | None, output: Path | None) -> str:
    """Compute the sums of the node's training images, or of those of some patients, and write them signed.

    Args:
        node: The name of the node; empty for the only one.
        model: The saved model of the run.
        key: The private key of its SuperNode.
        patients: A file with a patient in each line; None for all images.
        output: The file to write; None for one in the node's folder.

    Returns:
        A line about the file.

    Raises:
        FedShiftError: If model, key, list or images cannot be used, the method keeps no sums, or the owner's policy
            lets the sums of so few images not out.
    """
    site = nodes.named(node)
    credentials.check_private(key)
    signer = Key(key)
    opened, file = saved.read(model)
    config = opening.configuration_of(opened, model)
    where, allowed = _place(site, config)
    client = setup.make_client(config, where, 0)
    if not isinstance(client, FeatureSumsClient):
        raise ConfigError(
            f"--model: {config.method['name']} trains its weights, from which nothing can be subtracted; the operator "
            "can train again without this node"
        )
    complete = {name: tensor.numpy() for name, tensor in client.model.state_dict().items()} | saved.weights_of(file)
    client.begin({name: complete[name] for name in client.shared_frozen}, "")
    client.prepare(RoundInputs())
    loading.load({name: complete[name] for name in client.shared_names}, client, f"{shown(file)}:")
    names = None if patients is None else _listed(patients)
    in_model = client.model.classifier.weight.detach().any(dim=1).numpy()  # classes that the sums had rows of
    chosen = _chosen(client.train_set, names) & in_model[client.train_set.y]
    if not chosen.any():
        raise ConfigError("--model: it was made of none of these images: too few nodes held their classes")
    sums = client.sums_of(chosen)
    if why := refuse_images(CLASS, CROSS, allowed.least_images, sums[COUNTS].tolist()):
        raise ConfigError(
            f"{why}: who reads the file would read them; list more patients at once, or let the operator train again"
        )
    images, number = int(sums[COUNTS].sum()), None if names is None else len(names)
    about = About(run_id=opened.origin.run_id, domain=where.domain, patients=number, images=images)
    target = site.folder / "withdrawal.safetensors" if output is None else user_path(output, "--output")
    withdrawal.write(target, about, sums, signer)
    of = "all" if number is None else plural(number, "patient")
    return f"wrote {shown(target, WHOLE_PATH)}: {plural(images, 'training image')} of {of}"


def _place(node: SiteNode, config: RunConfig) -> tuple[Place, Policy]:
    """Return where a node stands, as it does in a run, and its owner's policy.

    Raises:
        FedShiftError: If it was never started, or its policy refuses the run.
    """
    if not node.config:
        raise ConfigError(f"NODE: `fedshift supernode` never started {shown(node.name)} here: its images are not known")
    where = setup.place(config, make_context(0, dict(node.config), {}), setup.DEPLOYMENT)
    allowed = policy.load(str(node.config.get(policy.POLICY, policy.STRICT))).policy
    assert where.source.data_dir is not None  # of a real node
    where = replace(where, guard=partition.guard(allowed, ledger.of_images(where.source.data_dir)))
    if why := next(policy_rules.refusals(allowed, config, where), ""):
        raise PolicyError(why)
    return where, allowed


def _listed(file: Path) -> list[str]:
    """Return the patients of a file, a line each, every one once.

    Raises:
        ConfigError: If it cannot be read, or names nobody.
    """
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"--patients: {shown(file)} cannot be read: {error}") from None
    names = [*dict.fromkeys(same_names.patient(line) for line in lines if line)]
    if not names:
        raise ConfigError(f"--patients: {shown(file)} names nobody; expected is a patient in each line")
    return names


def _chosen(images: ImageSet, patients: list[str] | None) -> NDArray[np.bool_]:
    """Return which of the training images are taken out, (N,).

    Raises:
        ConfigError: If one of the patients has none.
    """
    if patients is None:
        return np.ones(len(images), bool)
    groups = [] if images.groups is None else [same_names.patient(name) if name else "" for name in images.groups]
    if missing := sorted({*patients} - {*groups}):
        names = some([plain(name, MOST_NAME) for name in missing], MOST_NAMED)
        raise ConfigError(f"--patients: no training image of {names} is here; a patient of none needs no withdrawal")
    return np.isin(np.array(groups), patients)
