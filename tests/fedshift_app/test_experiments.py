"""The papers' experiments: each says what its paper says. The numbers here are copied from the papers by hand."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray
from words import config as config_of

from fedshift_app.config.resolving import CONF, names
from fedshift_app.config.sections import RunConfig
from fedshift_datasets import catalog
from fedshift_datasets.partition.splits import Parts, domain_parts
from fedshift_datasets.sets import office, pacs

#: Of each experiment: nodes by domain, each node's share, the table of the paper, what differs from its family.
STATED: dict[str, dict[str, Any]] = yaml.safe_load("""
f2dc-digits: {nodes: {mnist: 3, usps: 6, svhn: 6, syn: 5}, share: 0.01, table: f2dc.Table 2}
f2dc-office: {nodes: {caltech: 3, amazon: 2, webcam: 2, dslr: 3}, share: 0.2, table: f2dc.Table 1a}
f2dc-pacs: {nodes: {photo: 2, art_painting: 3, cartoon: 2, sketch: 3}, share: 0.3, table: f2dc.Table 1b, size: 128}
fedcode-digit5: {nodes: {mnist: 5, usps: 5, svhn: 3, syn: 3, mnistm: 4}, share: 0.05, table: fedcode.Table 3}
fedcode-pacs: {nodes: {photo: 1, art_painting: 2, cartoon: 3, sketch: 4}, share: equal, table: fedcode.Table 4}
i2pfl-digits: {nodes: {mnist: 6, usps: 4, svhn: 3, syn: 7}, share: 0.01, table: i2pfl.Table II Digits}
i2pfl-office: {nodes: {caltech: 3, amazon: 2, webcam: 1, dslr: 4}, share: 0.2, table: i2pfl.Table II Office-10}
i2pfl-pacs: {nodes: {photo: 3, art_painting: 2, cartoon: 1, sketch: 4}, share: 0.3, table: i2pfl.Table II PACS}
i2pfl-out-digits: {nodes: {usps: 1, svhn: 1, syn: 1}, share: 0.01, table: i2pfl.Table III Digits}
i2pfl-out-office: {nodes: {amazon: 1, webcam: 1, dslr: 1}, share: 0.2, table: i2pfl.Table III Office-10}
i2pfl-out-pacs: {nodes: {art_painting: 1, cartoon: 1, sketch: 1}, share: 0.3, table: i2pfl.Table III PACS}
fedicon-digit5-covariate: {nodes: {mnist: 1, usps: 1, svhn: 1, syn: 1, mnistm: 1}, share: fedbn, table: fedicon.Table 1}
fedicon-table8: {nodes: {mnist: 1, usps: 1, svhn: 1, syn: 1, mnistm: 1}, share: fedbn, table: fedicon.Table 8}
fedicon-table8-without-lie:
  {nodes: {mnist: 1, usps: 1, svhn: 1, syn: 1, mnistm: 1}, share: fedbn, table: fedicon.Table 8}
fedicon-office10-covariate:
  {nodes: {caltech: 1, amazon: 1, webcam: 1, dslr: 1}, share: equal, table: fedicon.Table 5}
fedicon-domainnet-covariate:
  nodes: {clipart: 1, infograph: 1, painting: 1, quickdraw: 1, real: 1, sketch: 1}
  share: equal
  table: fedicon.Table 6
fedicon-digit5-domain: {nodes: {usps: 1, svhn: 1, syn: 1, mnistm: 1}, share: fedbn, table: fedicon.Table 7}
fedicon-office10-domain: {nodes: {caltech: 1, webcam: 1, dslr: 1}, share: equal, table: fedicon.Table 2}
fedicon-domainnet-domain:
  {nodes: {infograph: 1, painting: 1, quickdraw: 1, real: 1, sketch: 1}, share: equal, table: null}
fedicon-cifar10-attribute: {nodes: {cifar10: 20}, share: equal, table: fedicon.Table 4}
fedseproto-digits: {nodes: {mnist: 3, usps: 2, svhn: 1, syn: 4}, share: 0.01, table: fedseproto.Table 1 Digits}
fedseproto-digits-heterogeneous: {nodes: {mnist: 3, usps: 2, svhn: 1, syn: 4}, share: 0.01, table: fedseproto.Table 3}
fedseproto-office:
  {nodes: {caltech: 3, amazon: 2, webcam: 1, dslr: 4}, share: 0.2, table: fedseproto.Table 1 Office-Caltech}
fedseproto-pacs: {nodes: {photo: 2, art_painting: 3, cartoon: 4, sketch: 1}, share: 0.3, table: fedseproto.Table 2 PACS}
fedseproto-vlcs: {nodes: {caltech: 2, labelme: 3, pascal: 4, sun: 1}, share: 0.3, table: fedseproto.Table 2 VLCS}
""")
#: What the experiments of a paper or a data set share, each over those before it whose words are in its name.
FAMILIES: dict[str, dict[str, Any]] = yaml.safe_load("""
"-": {rounds: 100, epochs: 10, batch: 64, model: resnet10, size: 32, momentum: 0.9, weight_decay: 1.0e-5}
i2pfl-: {batch: 32}
i2pfl-pacs: {batch: 16, model: resnet18}
i2pfl-out-pacs: {batch: 16, model: resnet18}
fedicon-: {epochs: 5, batch: 32, model: cnn, momentum: 0.0, weight_decay: 5.0e-4}
fedicon-domainnet: {rounds: 20, model: resnet18, size: 64}
fedseproto-: {model: cnn3}
""")
TRAIN: dict[str, int] = yaml.safe_load("{mnist: 60000, usps: 7291, svhn: 73257, syn: 25000, mnistm: 59001}")
FEDBN: dict[str, float] = yaml.safe_load(
    "{mnist: 0.012384, usps: 0.101906, svhn: 0.010142, syn: 0.02972, mnistm: 0.012593}"
)
PAPERS = ("f2dc-", "fedcode-", "i2pfl-", "fedicon-", "fedseproto-")
CLASS_COUNTS = {"pacs": pacs.CLASS_COUNTS, "office-caltech10": office.CLASS_COUNTS}


def dealt(config: RunConfig, nodes: int | None = None) -> tuple[str, ...]:
    """Return the domain of each node."""
    number = nodes or config.allocation.num_nodes()
    assert number is not None
    return config.allocation.deal(config.dataset.domains, number, config.seed)


def labels_of(config: RunConfig, domain: str) -> NDArray[np.int64]:
    """Return labels as many as published: of all images, or of the eight of ten that train."""
    counts = CLASS_COUNTS[config.dataset.name][domain]
    whole = np.repeat(np.arange(len(counts)), counts)
    return whole[np.arange(len(whole)) % 10 < 8] if config.allocation.pool == ("train",) else whole


def raw(experiment: str) -> dict[str, Any]:
    """Return an experiment's file."""
    content: dict[str, Any] = yaml.safe_load((CONF / "experiments" / f"{experiment}.yaml").read_text())
    return content


def test_every_experiment_of_a_paper_is_in_this_table() -> None:
    assert {name for name in names("experiments") if name.startswith(PAPERS)} == {*STATED, "fedicon-scale"}
    assert {domain: round(FEDBN[domain] * number) for domain, number in TRAIN.items()} == dict.fromkeys(TRAIN, 743)


@pytest.mark.parametrize("experiment", STATED)
def test_nodes_and_training_are_the_papers(experiment: str) -> None:
    config, stated = config_of(experiment), dict[str, Any]()
    for words, shared in FAMILIES.items():
        stated |= shared if words in experiment else {}
    stated |= STATED[experiment] | {"lr": 0.01, "participation": 1, "precision": "float32"}
    stated |= {"share": FEDBN} if stated["share"] == "fedbn" else {}
    held, train, of, known = dealt(config), config.train, config.allocation, config.dataset
    assert stated == {
        "nodes": {domain: held.count(domain) for domain in held},
        "share": of.share,
        "table": raw(experiment).get("paper"),
        "rounds": config.rounds,
        "epochs": train.epochs,
        "batch": train.batch_size,
        "model": config.model.name,
        "size": known.size,
        "momentum": train.momentum,
        "weight_decay": train.weight_decay,
        "lr": train.lr,
        "participation": config.federation.participation,
        "precision": train.precision,
    }
    assert {*held} | {*of.held_out} == {*known.domains}
    assert {*catalog.get(known.name).domains} - {*known.domains} == ({"mnistm"} if known.name == "digits" else set())


def parts_of(config: RunConfig, nodes: int | None = None) -> Iterator[tuple[str, NDArray[np.int64], Parts]]:
    """Yield of each node its domain, the labels that its domain has, and its parts."""
    held, classes = dealt(config, nodes), len(catalog.get(config.dataset.name).classes)
    for index, domain in enumerate(held):
        labels = labels_of(config, domain)
        yield domain, labels, domain_parts(config.allocation, held, domain, labels, classes, config.seed)[index]


#: ``int(percent * length)`` of each domain's training images; of a domain that runs out, what is left.
HELD: dict[str, dict[str, list[int]]] = yaml.safe_load("""
f2dc-pacs: {photo: [400, 2], art_painting: [492, 3], cartoon: [562, 2], sketch: [943, 3]}
i2pfl-pacs: {photo: [400, 3], art_painting: [492, 2], cartoon: [562, 1], sketch: [943, 3, 315]}
fedseproto-pacs: {photo: [400, 2], art_painting: [492, 3], cartoon: [562, 3, 190], sketch: [943, 1]}
f2dc-office: {caltech: [179, 3], amazon: [153, 2], webcam: [47, 2], dslr: [25, 3]}
i2pfl-office: {caltech: [179, 3], amazon: [153, 2], webcam: [47, 1], dslr: [25, 4]}
""")


@pytest.mark.parametrize("experiment", HELD)
def test_nodes_hold_as_many_images_as_the_authors_code_gives_them(experiment: str) -> None:
    content: dict[str, list[int]] = {}
    for domain, _, parts in parts_of(config_of(experiment)):
        content.setdefault(domain, []).append(len(parts.train))
    wanted = HELD[experiment].items()
    assert content == {domain: [images] * nodes + rest for domain, (images, nodes, *rest) in wanted}


FAMILY = [name for name in STATED if name.startswith(("f2dc-", "i2pfl-", "fedseproto-")) and "hetero" not in name]
PROTO = yaml.safe_load(
    "{share_weights: true, lambda_proto: 1, reduction: mse_mean, prototype_mean: plain, proto_source: last_epoch}"
)


def has(experiment: str, method: str, **values: Any) -> bool:
    """Tell whether a method has these values in an experiment."""
    return values.items() <= config_of(f"{experiment} method={method}").method.items()


@pytest.mark.parametrize("experiment", FAMILY)
def test_baselines_have_the_values_of_the_fpl_familys_code(experiment: str) -> None:
    assert has(experiment, "moon", mu=5, tau=0.5)
    # Its code has mu * (0.01 / 2) * |w - w^t|^2 with mu = 0.01, ours mu / 2 * |w - w^t|^2.
    assert has(experiment, "fedprox", mu=0.01 * 0.01)
    assert has(experiment, "fpl", tau=0.02, proto_source="last_epoch")
    if experiment.startswith("f2dc-"):  # one global model is scored; its tables have neither FedProto nor FedProc
        assert all(has(experiment, method, share_weights=True) for method in ("fedtgp", "fedsa"))
    else:
        assert has(experiment, "fedproto", **PROTO)
    if experiment.startswith("i2pfl-"):
        assert has(experiment, "fedproc", tau=1)
        assert raw(experiment)["methods"]["feddyn"] == {"alpha": 0.1}  # ours: neither paper nor code says one
        assert has(experiment, "fedplvm", alpha=0.75, tau=0.02, lambda_proto=1)


@pytest.mark.parametrize("experiment", [name for name in names("experiments") if name.startswith("fedicon-")])
def test_fedicon_trains_its_classifier_5_and_50_epochs(experiment: str) -> None:
    assert has(experiment, "fedicon", classifier_epochs=5, personal_epochs=50)
    config = config_of(f"{experiment} method=fedicon")
    more = 0 if experiment == "fedicon-table8-without-lie" else config.method["classifier_rounds"]
    assert config.rounds == config_of(experiment).rounds + more
