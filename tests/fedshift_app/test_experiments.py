"""The papers' experiments: each says what its paper says. The numbers here are copied from the papers by hand."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray
from support import InlineRun

from fedshift.lab.tables.papers import printed
from fedshift_app.config.keys import as_requested, flat
from fedshift_app.config.resolving import CONF, names, resolve
from fedshift_app.config.sections import RunConfig
from fedshift_clients.adapt.params import ContrastParams
from fedshift_datasets import catalog
from fedshift_datasets.partition.splits import node_parts
from fedshift_datasets.sets import office, pacs


@dataclass(frozen=True)
class Stated:
    """What a paper states of an experiment: nodes by domain, and local training."""

    nodes: dict[str, int]
    share: Any
    rounds: int
    epochs: int
    batch: int
    model: str
    size: int
    table: str | None
    momentum: float = 0.9
    weight_decay: float = 1e-5


def _fpl(
    nodes: dict[str, int], share: Any, table: str, *, batch: int = 64, model: str = "resnet10", size: int = 32
) -> Stated:
    return Stated(nodes, share, 100, 10, batch, model, size, table)


def _fedicon(
    nodes: dict[str, int], share: Any, table: str | None, *, rounds: int = 100, resnet: bool = False
) -> Stated:
    model, size = ("resnet18", 64) if resnet else ("cnn", 32)
    return Stated(nodes, share, rounds, 5, 32, model, size, table, momentum=0.0, weight_decay=5e-4)


TRAIN = {"mnist": 60000, "usps": 7291, "svhn": 73257, "syn": 25000, "mnistm": 59001}
FEDBN = {"mnist": 0.012384, "usps": 0.101906, "svhn": 0.010142, "syn": 0.02972, "mnistm": 0.012593}

STATED = {
    "f2dc-digits": _fpl({"mnist": 3, "usps": 6, "svhn": 6, "syn": 5}, 0.01, "f2dc.Table 2"),
    "f2dc-office": _fpl({"caltech": 3, "amazon": 2, "webcam": 2, "dslr": 3}, 0.2, "f2dc.Table 1a"),
    "f2dc-pacs": _fpl({"photo": 2, "art_painting": 3, "cartoon": 2, "sketch": 3}, 0.3, "f2dc.Table 1b", size=128),
    "fedcode-digit5": _fpl({"mnist": 5, "usps": 5, "svhn": 3, "syn": 3, "mnistm": 4}, 0.05, "fedcode.Table 3"),
    "fedcode-pacs": _fpl({"photo": 1, "art_painting": 2, "cartoon": 3, "sketch": 4}, "equal", "fedcode.Table 4"),
    "i2pfl-digits": _fpl({"mnist": 6, "usps": 4, "svhn": 3, "syn": 7}, 0.01, "i2pfl.Table II Digits", batch=32),
    "i2pfl-office": _fpl(
        {"caltech": 3, "amazon": 2, "webcam": 1, "dslr": 4}, 0.2, "i2pfl.Table II Office-10", batch=32
    ),
    "i2pfl-pacs": _fpl(
        {"photo": 3, "art_painting": 2, "cartoon": 1, "sketch": 4}, 0.3, "i2pfl.Table II PACS",
        batch=16, model="resnet18",
    ),
    "i2pfl-out-digits": _fpl({"usps": 1, "svhn": 1, "syn": 1}, 0.01, "i2pfl.Table III Digits", batch=32),
    "i2pfl-out-office": _fpl({"amazon": 1, "webcam": 1, "dslr": 1}, 0.2, "i2pfl.Table III Office-10", batch=32),
    "i2pfl-out-pacs": _fpl(
        {"art_painting": 1, "cartoon": 1, "sketch": 1}, 0.3, "i2pfl.Table III PACS", batch=16, model="resnet18"
    ),
    "fedicon-digit5-covariate": _fedicon(dict.fromkeys(FEDBN, 1), FEDBN, "fedicon.Table 1"),
    "fedicon-table8": _fedicon(dict.fromkeys(FEDBN, 1), FEDBN, "fedicon.Table 8"),
    "fedicon-table8-without-lie": _fedicon(dict.fromkeys(FEDBN, 1), FEDBN, "fedicon.Table 8"),
    "fedicon-office10-covariate": _fedicon(
        {"caltech": 1, "amazon": 1, "webcam": 1, "dslr": 1}, "equal", "fedicon.Table 5"
    ),
    "fedicon-domainnet-covariate": _fedicon(
        {"clipart": 1, "infograph": 1, "painting": 1, "quickdraw": 1, "real": 1, "sketch": 1}, "equal",
        "fedicon.Table 6", rounds=20, resnet=True,
    ),
    "fedicon-digit5-domain": _fedicon({"usps": 1, "svhn": 1, "syn": 1, "mnistm": 1}, FEDBN, "fedicon.Table 7"),
    "fedicon-office10-domain": _fedicon({"caltech": 1, "webcam": 1, "dslr": 1}, "equal", "fedicon.Table 2"),
    "fedicon-domainnet-domain": _fedicon(
        {"infograph": 1, "painting": 1, "quickdraw": 1, "real": 1, "sketch": 1}, "equal", None, rounds=20, resnet=True
    ),
    "fedicon-cifar10-attribute": _fedicon({"cifar10": 20}, "equal", "fedicon.Table 4"),
    "fedseproto-digits": _fpl(
        {"mnist": 3, "usps": 2, "svhn": 1, "syn": 4}, 0.01, "fedseproto.Table 1 Digits", model="cnn3"
    ),
    "fedseproto-office": _fpl(
        {"caltech": 3, "amazon": 2, "webcam": 1, "dslr": 4}, 0.2, "fedseproto.Table 1 Office-Caltech", model="cnn3"
    ),
    "fedseproto-pacs": _fpl(
        {"photo": 2, "art_painting": 3, "cartoon": 4, "sketch": 1}, 0.3, "fedseproto.Table 2 PACS", model="cnn3"
    ),
    "fedseproto-vlcs": _fpl(
        {"caltech": 2, "labelme": 3, "pascal": 4, "sun": 1}, 0.3, "fedseproto.Table 2 VLCS", model="cnn3"
    ),
}  # fmt: skip
STATED["fedseproto-digits-heterogeneous"] = replace(STATED["fedseproto-digits"], table="fedseproto.Table 3")

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
    whole = np.repeat(np.arange(len(counts)), list(counts.values()))
    return whole[np.arange(len(whole)) % 10 < 8] if config.allocation.pool == ("train",) else whole


def raw(experiment: str) -> dict[str, Any]:
    """Return an experiment's file."""
    content: dict[str, Any] = yaml.safe_load((CONF / "experiments" / f"{experiment}.yaml").read_text())
    return content


def test_every_experiment_of_a_paper_is_in_this_table() -> None:
    assert {name for name in names("experiments") if name.startswith(PAPERS)} == {*STATED, "fedicon-scale"}


@pytest.mark.parametrize("experiment", STATED)
def test_nodes_and_training_are_the_papers(experiment: str) -> None:
    config, stated = resolve({"experiment": experiment}), STATED[experiment]
    held = dealt(config)
    assert {domain: held.count(domain) for domain in held} == stated.nodes
    assert config.allocation.share == stated.share
    train = config.train
    assert (config.rounds, train.epochs, train.batch_size) == (stated.rounds, stated.epochs, stated.batch)
    assert (train.lr, train.momentum, train.weight_decay) == (0.01, stated.momentum, stated.weight_decay)
    assert (config.model.name, config.dataset.size) == (stated.model, stated.size)
    assert config.federation.participation == 1
    assert raw(experiment).get("paper") == stated.table


@pytest.mark.parametrize("experiment", STATED)
def test_every_domain_is_trained_on_or_held_out(experiment: str) -> None:
    config = resolve({"experiment": experiment})
    held_out = config.allocation.held_out
    assert set(dealt(config)) | set(held_out) == set(config.dataset.domains)
    assert set(config.dataset.domains) == set(catalog.get(config.dataset.name).domains) - (
        {"mnistm"} if config.dataset.name == "digits" else set()
    )


@pytest.mark.parametrize("experiment", [name for name in STATED if raw(name)["dataset"]["name"] in CLASS_COUNTS])
def test_the_published_numbers_of_images_are_enough(experiment: str) -> None:
    config = resolve({"experiment": experiment})
    held = dealt(config)
    classes = len(catalog.get(config.dataset.name).classes)
    for index, domain in enumerate(held):
        labels = labels_of(config, domain)
        parts = node_parts(config.allocation, held, index, labels, classes, config.seed)
        if config.allocation.class_coverage:
            assert set(labels[parts.train]) == set(range(classes))
        assert (len(parts.test) > 0) == experiment.startswith("fedcode-")
        if isinstance(config.allocation.share, float):
            before = held[:index].count(domain)  # the fourth node of a domain at 30 % takes the tenth that is left
            size = int(config.allocation.share * len(labels))
            assert len(parts.train) == min(size, len(labels) - before * size)


def test_nodes_hold_as_many_images_as_the_authors_code_gives_them() -> None:
    """``int(percent * length)`` of each domain's training images; of a domain that runs out, what is left."""
    wanted = {
        "f2dc-pacs": {"photo": [400] * 2, "art_painting": [492] * 3, "cartoon": [562] * 2, "sketch": [943] * 3},
        "i2pfl-pacs": {"photo": [400] * 3, "art_painting": [492] * 2, "cartoon": [562], "sketch": [943] * 3 + [315]},
        "fedseproto-pacs": {
            "photo": [400] * 2, "art_painting": [492] * 3, "cartoon": [562] * 3 + [190], "sketch": [943],
        },
        "f2dc-office": {"caltech": [179] * 3, "amazon": [153] * 2, "webcam": [47] * 2, "dslr": [25] * 3},
        "i2pfl-office": {"caltech": [179] * 3, "amazon": [153] * 2, "webcam": [47], "dslr": [25] * 4},
    }  # fmt: skip
    for experiment, sizes in wanted.items():
        config = resolve({"experiment": experiment})
        held, classes = dealt(config), len(catalog.get(config.dataset.name).classes)
        content: dict[str, list[int]] = {}
        for index, domain in enumerate(held):
            parts = node_parts(config.allocation, held, index, labels_of(config, domain), classes, 0)
            content.setdefault(domain, []).append(len(parts.train))
        assert content == sizes


@pytest.mark.parametrize("experiment", names("experiments"))
def test_the_papers_experiments_compute_in_float32(experiment: str) -> None:
    """As the papers did; the others leave it to the machine."""
    ours = (
        experiment in ("handwritten", "camelyon17", "fed-isic2019")
        or "-small" in experiment
        or "-pretrained" in experiment
    )
    assert ours != experiment.startswith(PAPERS)
    assert resolve({"experiment": experiment}).train.precision == ("auto" if ours else "float32")
    changed = resolve({"experiment": experiment, "set": "train.precision=auto"})
    assert changed.train.precision == "auto"


FAMILY = [name for name in STATED if name.startswith(("f2dc-", "i2pfl-", "fedseproto-")) and "hetero" not in name]


@pytest.mark.parametrize("experiment", FAMILY)
def test_baselines_have_the_values_of_the_fpl_familys_code(experiment: str) -> None:
    def method(name: str) -> Any:
        return resolve({"experiment": experiment, "method": name}).method

    assert (method("moon")["mu"], method("moon")["tau"]) == (5, 0.5)
    # Its code has mu * (0.01 / 2) * |w - w^t|^2 with mu = 0.01, ours mu / 2 * |w - w^t|^2.
    assert method("fedprox")["mu"] == pytest.approx(0.01 * 0.01)
    assert (method("fpl")["tau"], method("fpl")["proto_source"]) == (0.02, "last_epoch")
    if not experiment.startswith("f2dc-"):  # F2DC's tables have neither FedProto nor FedProc
        proto = method("fedproto")
        assert (proto["share_weights"], proto["lambda_proto"], proto["reduction"]) == (True, 1, "mse_mean")
        assert (proto["prototype_mean"], proto["proto_source"]) == ("plain", "last_epoch")
    if experiment.startswith("f2dc-"):  # one global model is scored
        assert all(method(name)["share_weights"] for name in ("fedtgp", "fedsa"))
    if experiment.startswith("i2pfl-"):
        assert method("fedproc")["tau"] == 1
        assert raw(experiment)["methods"]["feddyn"] == {"alpha": 0.1}  # ours: neither paper nor code says one
        assert [method("fedplvm")[key] for key in ("alpha", "tau", "lambda_proto")] == [0.75, 0.02, 1]


def test_table_3_of_fedseproto_has_the_prototypes_of_that_code_and_no_weights() -> None:
    """Not in ``FAMILY``: networks differ, so that MOON, FedProx and FPL, whose weights travel, are not in the table."""
    config = resolve({"experiment": "fedseproto-digits-heterogeneous", "method": "fedproto"})
    method = config.method
    assert config.model.per_node == ("cnn3", "cnn2")
    assert (method["share_weights"], method["lambda_proto"], method["reduction"]) == (False, 1, "mse_mean")
    assert (method["prototype_mean"], method["proto_source"]) == ("plain", "last_epoch")


def test_fedicon_and_fedcode_keep_the_papers_own_values() -> None:
    """FedICON states FedProx's mu (A.3); FedCode states none, so each baseline has its own paper's."""
    for experiment in STATED:
        if experiment.startswith(("fedicon-", "fedcode-")):
            assert resolve({"experiment": experiment, "method": "fedprox"}).method["mu"] == 0.01
            assert resolve({"experiment": experiment, "method": "moon"}).method["mu"] == 1


@pytest.mark.parametrize("experiment", ["f2dc-digits", "i2pfl-digits", "i2pfl-out-digits"])
def test_digits_are_mirrored_where_the_authors_code_mirrors_them(experiment: str) -> None:
    assert resolve({"experiment": experiment}).images.flip


@pytest.mark.parametrize("experiment", [name for name in STATED if raw(name)["allocation"].get("held_out")])
def test_any_domain_can_be_held_out(experiment: str) -> None:
    domains = resolve({"experiment": experiment}).dataset.domains
    if experiment == "fedicon-cifar10-attribute":  # the other one is a test set only
        domains = ("cifar10.1",)
    for domain in domains:
        config = resolve({"experiment": experiment, "set": f"allocation.held_out=[{domain}]"})
        held = dealt(config)
        assert domain not in held
        assert set(held) == set(config.dataset.domains) - {domain}


@pytest.mark.parametrize(
    ("ending", "shift"), [("-covariate", "corruption"), ("-domain", "domain"), ("-attribute", "attribute")]
)
def test_shift_of_test_images(ending: str, shift: str) -> None:
    for experiment in STATED:
        config = resolve({"experiment": experiment})
        out = experiment.startswith("i2pfl-out-") and ending == "-domain"
        of_table_8 = experiment.startswith("fedicon-table8") and ending == "-covariate"
        assert (config.shift.name == shift) == (experiment.endswith(ending) or out or of_table_8)
        assert config.shift.name != "corruption" or config.shift.severity == 5


@pytest.mark.parametrize("nodes", [5, 10, 20, 40, 80])
def test_fedicon_divides_the_same_images_among_5_to_80_nodes(nodes: int) -> None:
    config = resolve({"experiment": "fedicon-scale"})
    held = dealt(config, nodes)
    assert {held.count(domain) for domain in config.dataset.domains} == {nodes // 5}
    table_1 = resolve({"experiment": "fedicon-digit5-covariate"})
    for domain, images in TRAIN.items():
        labels = np.zeros(images, np.int64)
        parts = [node_parts(config.allocation, held, i, labels, 10, 0).train for i in range(nodes) if held[i] == domain]
        assert {len(part) for part in parts} <= {743 * 5 // nodes, 743 * 5 // nodes + 1}
        one = dealt(table_1)
        of_table_1 = node_parts(table_1.allocation, one, one.index(domain), labels, 10, 0).train
        assert np.array_equal(np.sort(np.concatenate(parts)), of_table_1)


def test_fedbn_takes_743_images_of_each_digit_domain() -> None:
    assert {domain: round(FEDBN[domain] * number) for domain, number in TRAIN.items()} == dict.fromkeys(TRAIN, 743)


@pytest.mark.parametrize("experiment", [name for name in names("experiments") if name.startswith("fedicon-")])
def test_fedicon_trains_its_classifier_5_and_50_epochs(experiment: str) -> None:
    config = resolve({"experiment": experiment, "method": "fedicon"})
    assert (config.method["classifier_epochs"], config.method["personal_epochs"]) == (5, 50)
    more = 0 if experiment == "fedicon-table8-without-lie" else config.method["classifier_rounds"]
    assert config.rounds == resolve({"experiment": experiment}).rounds + more


ROWS_OF_TABLE_8 = [
    ("fedicon-table8-without-lie", "local", "", "none (Local)"),
    ("fedicon-table8-without-lie", "fedavg", "", "GIS (FedAvg)"),
    ("fedicon-table8-without-lie", "fedicon", "method.gis=false method.tta=false", "none (Local)"),
    ("fedicon-table8-without-lie", "fedicon", "method.tta=false", "GIS (FedAvg)"),
    ("fedicon-table8-without-lie", "fedicon", "method.gis=false", "TTA"),
    ("fedicon-table8-without-lie", "fedicon", "", "GIS+TTA"),
    ("fedicon-table8", "fedicon", "method.gis=false method.tta=false", "LIE"),
    ("fedicon-table8", "fedicon", "method.tta=false", "LIE+GIS"),
    ("fedicon-table8", "fedicon", "method.gis=false", "LIE+TTA"),
    ("fedicon-table8", "fedicon", "", "LIE+GIS+TTA (FedICON)"),
]


@pytest.mark.parametrize(("experiment", "method", "settings", "row"), ROWS_OF_TABLE_8)
def test_each_row_of_table_8_has_a_command(experiment: str, method: str, settings: str, row: str) -> None:
    config = resolve({"experiment": experiment, "method": method, "set": settings})
    result = printed.get("fedicon.table8").standing(as_requested(flat(config.model_dump(mode="json"))))
    assert result is not None and result.row.method == row
    assert config.images.draws_real_values is (experiment == "fedicon-table8")
    if config.adapt["name"] == "fedicon":  # the same views in all rows
        views = ContrastParams.model_validate({k: v for k, v in config.adapt.items() if k != "name"}).views(
            config.images
        )
        lie = resolve({"experiment": "fedicon-digit5-covariate", "method": "fedicon"}).images
        assert views.model_copy(update={"views": 2}) == lie


def test_rows_gis_and_none_of_table_8_are_fedavg_and_local(run_inline: InlineRun, tmp_path: Path) -> None:
    """The same numbers in a short run of the experiment's settings on images that are at hand; TTA starts from them."""
    own = raw("fedicon-table8-without-lie") | {"rounds": 2}
    own["dataset"] = {"name": "handwritten", "domains": ["scan", "sketch"]}
    path = tmp_path / "table8.yaml"
    path.write_text(yaml.safe_dump(own | {"allocation": {"counts": "any", "share": 0.05}}))

    def message_of(method: str, settings: str = "") -> tuple[str, list[dict[str, Any]]]:
        result = run_inline(str(path), method=method, set=f"train.epochs=1 {settings}")
        lines = [{key: value for key, value in line.items() if key != "seconds"} for line in result.rounds]
        return result.results["weights_sha256"], lines

    few = "method.personal_epochs=2"
    gis, none = (message_of("fedicon", f"{few} method.tta=false {more}") for more in ("", "method.gis=false"))
    assert gis == message_of("fedavg")
    assert none == message_of("local")
    assert gis[1] != none[1]
    weights, adapted = message_of("fedicon", few)
    assert weights == gis[0]
    assert [line["others"]["before-adaptation"] for line in adapted] == [line["accuracy"] for line in gis[1]]


@pytest.mark.parametrize(
    ("experiment", "tau", "lambda1"),
    [
        ("i2pfl-digits", 0.07, 10), ("i2pfl-office", 0.02, 10), ("i2pfl-pacs", 0.04, 2),
        ("i2pfl-out-digits", 0.07, 10), ("i2pfl-out-office", 0.02, 10), ("i2pfl-out-pacs", 0.04, 2),
        ("f2dc-office", 0.02, 10), ("f2dc-pacs", 0.04, 2), ("fedcode-pacs", 0.04, 2),
        ("fedseproto-office", 0.02, 10), ("fedseproto-pacs", 0.04, 2),
    ],
)  # fmt: skip
def test_i2pfl_has_its_own_numbers_for_each_data_set(experiment: str, tau: float, lambda1: float) -> None:
    method = resolve({"experiment": experiment, "method": "i2pfl"}).method
    assert (method["tau"], method["lambda1"], method["lambda2"], method["alpha"]) == (tau, lambda1, 1, 0.4)


def test_cifar_takes_the_second_concentration_of_its_table() -> None:
    assert resolve({"experiment": "fedicon-cifar10-attribute"}).allocation.label_skew == 0.1
    other = resolve({"experiment": "fedicon-cifar10-attribute", "set": "allocation.label_skew=1"})
    assert other.allocation.label_skew == 1


def test_cifar_is_tested_on_both_test_sets_with_the_labels_of_each_node() -> None:
    """Table 4: the original test set and CIFAR-10.1; on both, a client's test labels follow its training labels."""
    config = resolve({"experiment": "fedicon-cifar10-attribute"})
    assert config.dataset.domains == ("cifar10", "cifar10.1")
    assert config.shift.label_mix == "own"
    assert {name for name in STATED if resolve({"experiment": name}).shift.label_mix == "own"} == {config.experiment}
