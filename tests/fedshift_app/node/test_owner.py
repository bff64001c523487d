"""A node does what its owner's policy allows, whatever the run asks for: its app called directly, and whole runs."""

import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message
from hypothesis import given
from hypothesis import strategies as st
from real_node import charge
from support import Run

from fedshift.site.deploy import exporting
from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app.config.resolving import resolve
from fedshift_app.node import ledger, partition, policy_rules, setup
from fedshift_app.node import policy as policy_file
from fedshift_app.node.data import Place, own_images
from fedshift_app.node.owner import Owner
from fedshift_app.node.place import Guard, PolicyError
from fedshift_app.node.policy import Policy, RequiredNoise
from fedshift_app.node.setup import spending_of
from fedshift_core.errors import FederationError
from fedshift_core.wire.messages import NodeIntroduction, WorkReply
from fedshift_core.wire.records import decode, encode
from fedshift_datasets.base import Source
from fedshift_strategies.federation.introduction import Introduction

SHORT = "train.epochs=1 dataset.domains=[scan,texture,sketch]"  # of which nodes train one each
DP = "privacy.name=local-dp privacy.clipping_norm=0.5 privacy.epsilon=1"
FEW_CLASS, FEW_IMAGES = 3, 2  # of the first node
SCORE: dict[str, Any] = {"domains": ["scan"], "drawn": [90], "figures": True}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[NodeFolder]:
    """Return the images of three real nodes, the first with two images of class 3."""
    config = resolve({"set": f"{SHORT} allocation.share=0.2"})
    made = exporting.export(config, 3, tmp_path_factory.mktemp("owned") / "nodes")
    file = made[0].path / "scan_train.npz"
    with np.load(file) as archive:
        arrays = dict(archive)
    np.savez(file, **without_few(arrays))
    return made


def without_few(arrays: dict[str, Any]) -> dict[str, Any]:
    """Return arrays of images with two images of class 3."""
    few = np.flatnonzero(arrays["y"] == FEW_CLASS)[FEW_IMAGES:]
    return arrays | {key: np.delete(arrays[key], few, axis=0) for key in ("x", "y")}


@pytest.fixture
def node(folders: list[NodeFolder], owned: Any) -> Any:
    made = owned(folders[0])
    made.allow()
    return made


# --- what is refused before any work --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "method", "given", "why"),
    [
        ("methods: [fpl, fedbn]", "fedavg", "", "methods=[fpl, fedbn]"),
        ("networks: [resnet10]", "fedavg", "model.name=cnn", "networks=[resnet10]"),
        ("contributions: []", "fpl", "", "contributions=[]"),
        ("contributions: [prototypes]", "fpl", "", "counts"),
        ("", "fedplvm", "", "prototypes"),
        ("", "fedpall", "", "features"),
        ("largest_in: 1000", "fedavg", "", "largest_in=1000"),
        ("privacy: {epsilon: 3}", "fedavg", "", "privacy.name=local-dp"),
        ("privacy: {epsilon: 0.5}", "fedavg", DP, "privacy.epsilon=0.5"),
        ("privacy: {epsilon: 9, delta: 1.0e-9}", "fedavg", DP, "privacy.delta=1e-05"),
        ("budget: {epsilon: 3}", "fedavg", "", "budget"),
        ("budget: {epsilon: 0.1}", "fedavg", DP, "budget.epsilon=0.1"),
        ("weights: masked", "fedavg", "", "weights=masked"),
        ("secure_sums: {nodes: 3}", "fedavg", "", "at least 3 nodes"),
        ("least_images: 10000", "fedavg", "", "least_images=10000"),  # of which it does not say how many
    ],
)
def test_a_run_that_is_not_allowed(
    policy: str, method: str, given: str, why: str, node: Any, caplog: pytest.LogCaptureFixture
) -> None:
    node.allow(policy)
    trains = policy.startswith("largest_in")
    with caplog.at_level(logging.WARNING, "fedshift"):
        reason = node.refused("train" if trains else "query", given=given, method=method)
    assert why in reason
    assert trains or reason.startswith("node of scan: ")
    assert trains or not any(str(number) in reason.replace("10000", "") for number in range(100, 400))
    (line,) = caplog.messages
    assert why in line  # for the owner


@pytest.mark.parametrize(
    ("policy", "method", "given"),
    [
        ("{methods: [fpl], networks: [cnn]}", "fpl", "model.name=cnn"),
        ("contributions: [prototypes, counts]", "fpl", ""),
        ("contributions: []", "fedavg", "model.name=cnn"),
        ("least_images: 1", "fedplvm", ""),
        ("{privacy: {epsilon: 3}, budget: {epsilon: 0.9}}", "fedavg", DP),
        ("", "scaffold", ""),
        ("", "fedthe", ""),
    ],
)
def test_a_run_that_is_allowed(policy: str, method: str, given: str, node: Any) -> None:
    node.allow(policy)
    node.answers("query", method=method, given=given)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("on", ""),
        ("on federation.secure_sums_nodes=2", "secure_sums_nodes=2"),
        ("on federation.secure_sums_least=2.5", "secure_sums_least=2.5"),
        ("off", "secure_sums=off"),
    ],
)
def test_secure_sums_over_enough_nodes_are_what_a_policy_asks_for(given: str, named: str) -> None:
    config = resolve({"set": f"federation.secure_sums={given}"})
    refused = next(policy_rules.refusals(Policy(secure_sums=policy_file.SecureSums(nodes=3)), config, WHERE), "")
    assert named in refused and bool(named) == bool(refused)


def test_a_run_of_no_rounds_spends_nothing() -> None:
    config = resolve({"rounds": 0, "set": f"{SHORT} {DP}"})
    assert not [*policy_rules.refusals(Policy(privacy=RequiredNoise(epsilon=1e-3)), config, WHERE)]


def test_a_sample_of_few_test_images_is_refused_and_one_that_leaves_few() -> None:
    """Scores of the sample and of all would give those of the others."""
    where = replace(WHERE, guard=Guard(20, 1))
    with pytest.raises(PolicyError, match="fewer than least_images=20 test images would be in a sample"):
        partition._size(19, 90, where, "test")
    with pytest.raises(PolicyError, match="fewer than least_images=20 test images would be left by a sample"):
        partition._size(71, 90, where, "test")
    assert partition._size(70, 90, where, "test") == 70 and partition._size(90, 90, where, "test") == 0


def test_a_simulation_has_no_owner(node: Any) -> None:
    """And a real node is none, also if its owner names nothing but a policy."""
    node.context.node_config = {"policy": "open", "partition-id": 0, "num-partitions": 2}
    reply = node.ask("query", engine="simulation")
    assert "takes no part in a simulation" in str(reply.error.reason)
    simulated = Owner(policy_file.BUILT_IN["open"], CONFIG, replace(WHERE, partition_id=0, num_partitions=4))
    record = WorkReply(1, {"count/scan": 1}).to_record()
    assert simulated.least_images == 1 and simulated.leaves("evaluate", record) is record


# --- what leaves ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fpl", "fedpac", "fedcode"])
def test_a_class_of_few_images_is_absent_from_all_that_is_trained(method: str, node: Any) -> None:
    counts = node.answers("query")["metrics"]["class-counts"]
    few = [k for k, n in enumerate(counts) if n == 0]
    reply = node.answers("train", method=method)
    sent = decode(reply["knowledge"])
    assert FEW_CLASS in few and len(few) < 6
    for name in {"prototypes", "counts", "class-features"} & set(sent):
        assert not sent[name][few].any()
        assert sent[name][[k for k in range(10) if k not in few]].any(axis=tuple(range(1, sent[name].ndim))).all()
    assert reply["metrics"]["num-examples"] == sum(counts)


def test_masked_weights_are_of_all_images_and_few_of_a_class_count_as_the_least(node: Any) -> None:
    config = resolve({"set": SHORT})
    where = setup.place(config, node.context, "deployment")
    alone, every = (np.bincount(own_images(config, replace(where, guard=guard)).train.y, minlength=10)
                    for guard in (Guard(5, 1, keeps_few=True), None))  # fmt: skip
    assert alone.tolist() == every.tolist() and every[FEW_CLASS] == FEW_IMAGES
    owner = Owner(Policy(), config, where)
    said = NodeIntroduction("scan", every.tolist(), 9, False, -1, -1)
    told = owner.introduction(said).class_counts
    assert told == [max(number, 5) if number else 0 for number in every.tolist()]


def test_figures_stay_unless_they_are_allowed(node: Any, folders: list[NodeFolder], tmp_path: Path) -> None:
    reply = node.answers("evaluate", **SCORE)
    assert "counts" not in reply and reply["metrics"]["withheld"] == 1
    assert reply["metrics"]["count/scan"] == 90
    node.allow("figures: true")
    reply = node.answers("evaluate", **SCORE)
    assert "counts" in reply and "withheld" not in reply["metrics"]
    shutil.copytree(folders[0].path, tmp_path / "few")
    with np.load(folders[0].path / "scan_test.npz") as archive:
        arrays = dict(archive)
    left = without_few(arrays)
    np.savez(tmp_path / "few" / "scan_test.npz", **left)
    node.context.node_config["data-dir"] = str(tmp_path / "few")
    assert "counts" not in node.answers("evaluate", **SCORE | {"drawn": [len(left["y"])]})


def test_a_reply_may_be_too_large(node: Any) -> None:
    node.allow("largest_out: 1000")
    assert "the reply is larger than largest_out=1000 bytes" in node.refused("train")
    node.answers("evaluate", **SCORE)


@pytest.mark.parametrize(("least", "validation"), [(1, range(1, 5)), (5, [0])])
def test_what_features_tell_of_few_images_stays(least: int, validation: Any, node: Any) -> None:
    """Of 64 training images three are to validate on."""
    few = "allocation.validation_fraction=0.05"
    gaps = f"{few} aggregation.weights=ga aggregation.gap_on=validation"
    node.allow(f"least_images: {least}")
    told = node.answers("query", given=few)["metrics"]
    assert told["num-validation"] in validation and told["num-test"] == 90
    scores = node.answers("evaluate", given=few, **SCORE, validation=True)["metrics"]
    trained = node.answers("train", given=gaps, gap=["loss", "validation"])["metrics"]
    assert ("validation-count" in scores) == ("local-received" in trained) == (least == 1)


def test_sums_of_few_training_images_are_refused(node: Any) -> None:
    scores, own = "evaluate.client_models=every", {"local_domains": ["scan"]}
    assert node.answers("train", given=scores, **own)["metrics"]["local-count/scan"] == 90
    sums = "model.name=cnn_bn evaluate.bn=[averaged,retaken] evaluate.bn_images=4"
    reason = node.refused("evaluate", given=sums, take_statistics=True, bn_images=4)
    assert reason == "fewer than least_images=5 training images would be in a sample"


# --- what is spent --------------------------------------------------------------------------------------


def test_the_budget_holds_over_rounds_runs_and_restarts(node: Any, owned: Any, folders: list[NodeFolder]) -> None:
    privacy = resolve({"set": f"{SHORT} {DP}"}).privacy
    node.allow(f"budget: {{epsilon: {(privacy.spent(3) + privacy.spent(4)) / 2}}}")
    for run in ("b", "c", "d"):  # of runs that know nothing of one another
        node.answers("train", given=DP, run_id=run * 32)
    assert "budget.epsilon" in node.refused("train", given=DP, run_id="e" * 32)
    again = owned(folders[0])  # the SuperNode is started again
    assert "budget.epsilon" in again.refused("train", given=DP, run_id="f" * 32)
    assert "budget.epsilon" in again.refused("query", given=DP)
    again.answers("evaluate", given=DP, **SCORE)  # scores of test images are no part of it
    book = ledger.of_images(folders[0].path).read()
    assert book.epsilon(1e-5) == pytest.approx(privacy.spent(3), rel=1e-9)


def test_a_repeated_round_counts_in_the_epsilon_of_a_run(node: Any) -> None:
    """A server that resumes a run, or says so, has each round released once more."""
    privacy = resolve({"set": f"{SHORT} {DP}"}).privacy
    node.allow(f"privacy: {{epsilon: {privacy.spent(10)}}}")
    for number in (*range(1, 10), 9):  # all 10 that are paid for
        node.answers("train", number, given=DP, run_id="b" * 32)
    reason = node.refused("train", 10, given=DP, run_id="b" * 32)
    assert "privacy.epsilon=" in reason
    node.answers("train", 1, given=DP, run_id="c" * 32)  # another run


@pytest.mark.skipif(find_spec("opacus") is None, reason="fedshift[dp] is not installed")
def test_private_training_is_charged_by_the_nodes_own_images(node: Any, folders: list[NodeFolder]) -> None:
    private = "privacy.name=dp-sgd privacy.noise_multiplier=2"
    node.answers("train", given=private, run_id="b" * 32)
    book = ledger.of_images(folders[0].path).read()
    ((one, rounds),) = book.runs["b" * 32].sampled
    assert one.sampling_rate == 32 / one.images and rounds == 1
    reply = node.answers("train", given=private, run_id="b" * 32)
    assert reply["metrics"]["num-examples"] == one.images
    spends = spending_of(resolve({"set": f"{SHORT} {private}"}), one.images)
    book = ledger.of_images(folders[0].path).read()
    assert book.epsilon(1e-5) == pytest.approx(spends.epsilon(2), rel=1e-9)
    node.allow(f"budget: {{epsilon: {(spends.epsilon(2) + spends.epsilon(3)) / 2}}}")
    assert "budget.epsilon" in node.refused("train", given=private)
    node.allow(f"privacy: {{name: dp-sgd, epsilon: {spends.epsilon(9)}}}")
    assert "rounds=10 spend more than the allowed" in node.refused("train", given=private)
    assert "required is privacy.name=dp-sgd" in node.refused("train", given=DP)


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ("", "read or written"),
        ("least_images: 1", "written"),
        ("{least_images: 1, budget: {epsilon: 5}}", "read"),
    ],
)
def test_a_ledger_that_cannot_be_written_lets_nothing_out(
    policy: str, why: str, node: Any, folders: list[NodeFolder]
) -> None:
    own = ledger.of_images(folders[0].path)
    charge(own, "run")
    own.path.write_text("{")
    node.allow(policy)
    assert node.refused("train", given=DP) == f"this node's ledger cannot be {why}"


def test_rounds_of_a_day_are_counted_over_runs(node: Any) -> None:
    node.allow("rounds_per_day: 2")
    for run in ("b", "c"):
        node.answers("train", run_id=run * 32)
    assert "rounds_per_day=2" in node.refused("train", run_id="d" * 32)
    node.answers("query")  # tomorrow it takes part again


# --- the file while the node runs -----------------------------------------------------------------------


def test_a_change_holds_from_the_next_message_on_and_is_said_once(node: Any, caplog: pytest.LogCaptureFixture) -> None:
    node.context.node_config["policy-sha256"] = policy_file.load(str(node.file)).sha256
    node.answers("query")
    assert "policy" not in caplog.text
    node.allow("methods: [fpl]")
    assert "allowed are methods=[fpl]" in node.refused("query")
    assert "this node's policy has changed, and holds from this message on" in caplog.text
    assert policy_file.load(str(node.file)).sha256 in caplog.text


def test_a_file_that_goes_bad_refuses_everything(node: Any, caplog: pytest.LogCaptureFixture) -> None:
    node.file.write_text("methods: [fedavgg]")
    assert node.refused("query") == "node of scan: this node's policy cannot be read"
    assert "unknown method 'fedavgg'" in caplog.text  # for the owner alone
    node.file.unlink()
    node.refused("train")


# --- whatever a node has, no cell of few images leaves --------------------------------------------------

CONFIG = resolve({"method": "fpl", "set": "allocation.validation_fraction=0.1"})
CLASSES = len(CONFIG.dataset.known().classes)
WHERE = Place("scan", -1, -1, Source(Path("/none")), False, 1)


@given(
    st.lists(st.integers(0, 12), min_size=CLASSES, max_size=CLASSES), st.integers(0, 12), st.integers(0, 12),
    st.integers(1, 8),
)  # fmt: skip
def test_no_introduction_has_a_cell_of_few_images(counts: list[int], tests: int, validation: int, least: int) -> None:
    owner = Owner(Policy(least_images=least), CONFIG, WHERE, ledger=ledger.Ledger(Path("/none")))
    said = NodeIntroduction("scan", counts, tests, False, -1, -1, numbers={"num-validation": validation})
    record = owner.leaves("query", owner.introduction(said).to_record())
    reply = record["metrics"]
    cells = [*reply["class-counts"], reply["num-test"], reply["num-validation"]]
    assert not any(0 < cell < least for cell in cells)
    if sum(counts):
        server = Introduction(("scan",), CLASSES, simulated=False)
        read, _ = server.read(Message(record, dst_node_id=1, message_type="query"))
        assert read.num_examples == sum(max(number, least) for number in counts if number)


@given(
    st.lists(st.integers(0, CLASSES - 1), min_size=1, max_size=60), st.integers(1, 8), st.integers(0, CLASSES),
    st.dictionaries(st.sampled_from(["count/scan", "validation-count", "local-count/scan"]), st.integers(0, 12)),
)  # fmt: skip
def test_no_reply_has_a_class_cell_of_few_images(
    labels: list[int], least: int, missed: int, numbers: dict[str, int]
) -> None:
    """Also where an epoch saw fewer images of a class than there are, and a feature counts what it should not."""
    owner = Owner(Policy(least_images=least, figures=True), CONFIG, WHERE, ledger=ledger.Ledger(Path("/none")))
    y = np.array(labels)
    counts = np.bincount(y, minlength=CLASSES)
    record = {"counts": encode({"confusion/scan": np.diag(counts).astype(np.int32)})}
    counts[:missed] = np.maximum(counts[:missed] - 1, 0)
    knowledge = {"prototypes": (counts[:, None] > 0).astype(np.float32).repeat(4, axis=1), "counts": counts}
    reply = WorkReply(len(y), numbers, weights=ArrayRecord(), knowledge=encode(knowledge), records=record).to_record()
    try:
        left = owner.leaves("train", reply)
    except PolicyError:
        assert len(y) < least or any(0 < number < least for number in (*numbers.values(), *counts.tolist()))
        return
    sent = decode(left["knowledge"])
    for cell, row in zip(sent["counts"].tolist(), sent["prototypes"], strict=True):
        assert cell == 0 or cell >= least
        assert row.any() == (cell > 0)
    assert not any(0 < number < least for number in left["metrics"].values() if isinstance(number, int) and number != 1)
    if "counts" in left:
        rows = decode(left["counts"])["confusion/scan"].sum(axis=1)
        assert not ((rows > 0) & (rows < least)).any()


# --- a run with real nodes ------------------------------------------------------------------------------


@pytest.fixture
def deployed(folders: list[NodeFolder], on_real_nodes: Callable[..., Run]) -> Callable[..., Run]:
    """Return a function that runs a method on three real nodes in this process, each with a policy of its own."""

    def run(*owners: str, more: str = "", **flat: Any) -> Run:
        configs = [
            {"domain": folder.domain, "data-dir": str(folder.path), "policy": owner}
            for folder, owner in zip(folders, owners, strict=True)
        ]
        return on_real_nodes(configs, **{"rounds": 2, "set": f"{SHORT} federation.min_nodes=2 {more}"} | flat)

    return run


def file_of(tmp_path: Path, policy: str) -> str:
    file = tmp_path / "owner.yaml"
    file.write_text(policy)
    file.chmod(0o600)
    return str(file)


def all_take_part(run: Run) -> bool:
    return all(line["nodes"] == [0, 1, 2] and not line["left_out"] for line in run.rounds)


def test_a_run_goes_on_without_the_node_whose_owner_refuses(deployed: Any, tmp_path: Path) -> None:
    run = deployed("open", "open", file_of(tmp_path, "methods: [fpl]"))
    assert [line["nodes"] for line in run.rounds] == [[0, 1], [0, 1]]
    for line in run.rounds:
        (declined,) = line["left_out"]
        assert "methods=[fpl] (SuperNode 1002)" in declined
    assert run.results["lost"] == {"1": [-1], "2": [-1]}
    assert len(run.results["nodes"]) == 2


def test_too_many_owners_that_refuse_end_the_run_with_their_reasons(deployed: Any, tmp_path: Path) -> None:
    refuses = file_of(tmp_path, "methods: [fpl]")
    with pytest.raises(FederationError, match=r"2 were refused:\n.* node of sketch: method="):
        deployed("open", refuses, refuses, more="federation.node_timeout=0.5")


def test_a_node_that_has_trained_enough_today_is_left_out_and_still_scores(deployed: Any, tmp_path: Path) -> None:
    run = deployed("open", "open", file_of(tmp_path, "rounds_per_day: 1"))
    assert [line["nodes"] for line in run.rounds] == [[0, 1, 2], [0, 1]]
    (reason,) = run.rounds[1]["left_out"]
    assert reason.startswith("node 2 (sketch): ") and "rounds" in reason
    assert [line["node"] for line in run.events("declined")] == [2]
    assert all(line["accuracy"]["sketch"] is not None for line in run.rounds)


def test_the_server_weighs_by_the_images_that_are_trained_on(deployed: Any) -> None:
    run = deployed("strict", "strict", "strict", method="fpl", rounds=1)
    assert all_take_part(run)
    for node in run.results["nodes"]:
        assert not any(0 < count < 5 for count in node["class_counts"])
        assert node["num_examples"] == sum(node["class_counts"])
    assert run.results["nodes"][0]["class_counts"][FEW_CLASS] == 0
    assert {line["node"] for line in run.events("withheld")} == {0, 1, 2}
    assert not any(run.results["figures"]["domains"].values())


@pytest.mark.parametrize("rule", ["ga", "afl"])
def test_a_server_takes_rounded_scores(rule: str, deployed: Any) -> None:
    """Of test, validation and training images, of the nodes' own models, and figures with intervals."""
    more = f"aggregation.weights={rule} allocation.validation_fraction=0.2 evaluate.client_models=every"
    run = deployed("strict", "strict", "strict", more=f"{more} evaluate.site_figures=true")
    assert all_take_part(run)
    assert len(run.results["site_figures"]["sites"]) == 3
    assert all(number is not None for number in run.rounds[-1]["validation"].values())


def test_scores_of_few_images_are_missing_and_nobody_is_left_out(deployed: Any) -> None:
    more = "allocation.validation_fraction=0.05 evaluate.client_models=every"
    run = deployed("strict", "strict", "open", more=more, rounds=1)
    assert all_take_part(run)
    validation = run.rounds[-1]["validation"]
    assert (validation["scan"], validation["texture"]) == (None, None) and validation["sketch"] is not None
