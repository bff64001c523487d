"""Which models are scored in a run: the nodes' own after local training, the global one every so many rounds,
and on validation parts. None of it changes the training.
"""

import operator
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MetricRecord
from killing import resume, start
from support import InlineRun, Run, image_set, new_client, same, shared
from traffic import Pair, asked, changing, noting, numbers
from words import config as config_of

from fedshift.lab.grid.rescore import command
from fedshift.lab.pages.report import predictions
from fedshift.lab.tables.compare import compare
from fedshift.run import reading
from fedshift_app.node import loading, setup
from fedshift_clients.base import DomainClient
from fedshift_core.wire.names import (
    CORRECT,
    DOMAINS,
    LOCAL_CORRECT,
    LOCAL_COUNT,
    LOCAL_DOMAINS,
    LOCAL_OWN_CORRECT,
    LOCAL_OWN_COUNT,
    SERVER_ROUND,
)  # fmt: skip
from fedshift_datasets.base import ImageSet

TINY = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.1"
LAST = f"{TINY} evaluate.client_models=last"
NAMES = ["scan", "sketch"]


def of(seen: list[Pair], kind: str, server_round: int) -> list[Pair]:
    """Return the messages of a kind in a round, each with its reply."""
    return [(m, r) for m, r in seen if (m.metadata.message_type, asked(m).get(SERVER_ROUND)) == (kind, server_round)]


# --- the node ---------------------------------------------------------------------------------------------


def make_client(model: str, bn: Any, validation: ImageSet | None = None) -> DomainClient:
    tests = {"own": image_set(17, seed=1), "other": image_set(9, seed=2)}
    return new_client(
        DomainClient,
        model=model,
        bn=bn,
        seed=3,
        train_set=image_set(24),
        test_set=tests.__getitem__,
        epochs=1,
        own_sets={} if validation is None else {"validation": validation},
    )


@pytest.mark.parametrize(("model", "bn"), [("cnn", "average"), ("cnn_bn", "local")])
def test_a_client_model_has_the_nodes_own_parts_and_its_freshly_trained_shared_ones(model: str, bn: str) -> None:
    client = make_client(model, bn)
    before = shared(client)
    weights, _, metrics = client.fit(before, {SERVER_ROUND: 1, LOCAL_DOMAINS: ["own", "other"]})
    # The trained shared weights with what the node keeps to itself make up the same model again.
    again = client.evaluate(weights, {DOMAINS: ["own", "other"]})[2]
    for name, images in (("own", 17), ("other", 9)):
        assert (metrics[LOCAL_COUNT + name], metrics[LOCAL_CORRECT + name]) == (images, again[CORRECT + name])
    assert not same(before, weights)


def test_a_node_with_a_test_set_of_its_own_scores_that_too_when_asked() -> None:
    client = make_client("cnn", "average")
    client.own_sets = {"test": image_set(7, seed=5)}
    metrics = client.fit(shared(client), {SERVER_ROUND: 1, LOCAL_DOMAINS: ["own"]})[2]
    assert (metrics[LOCAL_OWN_CORRECT], metrics[LOCAL_OWN_COUNT]) == (client.score(image_set(7, seed=5))[0], 7)
    assert not [name for name in client.fit(shared(client), {SERVER_ROUND: 1})[2] if name.startswith("local")]


# --- client models in a run -------------------------------------------------------------------------------


def test_the_last_five_rounds_and_the_numbers_of_the_run_stay_as_they_were(run_inline: InlineRun) -> None:
    seen: list[Pair] = []
    plain = run_inline(f"nodes=3 rounds=6 {TINY}")
    run = run_inline(f"nodes=3 rounds=6 {LAST}", grid=noting(seen))
    assert run.results["weights_sha256"] == plain.results["weights_sha256"]
    assert [untouched(line) for line in run.rounds] == [untouched(line) for line in plain.rounds]
    assert ["client_models" in line for line in run.rounds] == [False] + [True] * 5
    assert all(LOCAL_DOMAINS not in asked(message) for message, _ in of(seen, "train", 1))
    lines = [line["client_models"] for line in run.rounds[1:]]
    for message, reply in of(seen, "train", 2):
        assert asked(message)[LOCAL_DOMAINS] == NAMES
        said = numbers(reply)
        right = {name: 100 * said[LOCAL_CORRECT + name] / said[LOCAL_COUNT + name] for name in NAMES}
        assert lines[0]["matrix"][str(asked(message)["node-index"])] == right
    outcome = run.results["client_models"]
    means = {key: np.mean([line[key] for line in lines]) for key in ("lta", "gata", "gasa")}
    assert {key: outcome[key] for key in means} == pytest.approx(means)
    assert outcome["lta"] == pytest.approx(outcome["gasa"])  # nodes of a domain share its test set
    assert outcome["gata"] == pytest.approx(np.mean([*outcome["ata"].values()]))
    assert outcome["cprr"] == pytest.approx(100 * outcome["gata"] / outcome["gasa"])
    assert (outcome["averaged_rounds"], [*outcome["ata"]]) == (5, NAMES)


def untouched(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key not in ("seconds", "client_models")}


@pytest.mark.parametrize(
    "lie",
    [
        {LOCAL_CORRECT + "scan": 91.0},
        {LOCAL_CORRECT + "scan": float("nan")},
        {LOCAL_COUNT + "sketch": 91},
        {},  # it says nothing: its weights count
    ],
)
def test_a_node_that_says_nonsense_about_its_own_model_is_left_out(
    lie: dict[str, float], run_inline: InlineRun
) -> None:
    def change(message: Message, reply: Message) -> Message:
        said = {name: value for name, value in numbers(reply).items() if lie or not name.startswith("local")}
        reply.content["metrics"] = MetricRecord(said | lie)
        return reply

    (line,) = run_inline(f"rounds=1 {LAST}", grid=changing(change, "train", [0])).rounds
    assert line["nodes"] == [0, 1, 2, 3][bool(lie) :]
    assert [*line["client_models"]["matrix"]] == ["1", "2", "3"]
    assert line["left_out"][0].startswith("node 0 (scan): ") and next(iter(lie), "own model") in line["left_out"][0]
    assert not [name for name in line["losses"] if name.startswith("local")]


# --- the global model every so many rounds ----------------------------------------------------------------


# --- personal models on all domains -------------------------------------------------------------------------


ON_ALL = "evaluate.personal_on=all_domains"
SMALL = "dataset.domains=[scan,sketch] model.name=cnn_bn train.epochs=1 allocation.share=0.05"


def test_each_nodes_own_model_is_scored_on_all_domains(run_inline: InlineRun) -> None:
    given: dict[str, Any] = {"method": "fedbn", "nodes": 4, "rounds": 1, "set": SMALL}
    own, every = run_inline(**given), run_inline(**given | {"set": f"{given['set']} {ON_ALL}"})
    assert every.results["weights_sha256"] == own.results["weights_sha256"]
    assert own.results["evaluated"] == "personal models"
    assert "spread_over_nodes" not in own.results
    assert every.results["evaluated"] == "personal models, each on all domains"
    record = reading.read(every.folder)
    assert record.checkpoint is not None
    for domain in record.config.dataset.domains:  # slow: each node's client, scored as a whole
        each = []
        for node in record.checkpoint.nodes:
            client = predictions.client_of(record, record.config, domain, node)
            loading.load(record.checkpoint.weights, client, "the checkpoint's")
            test = client.test_set(domain)
            each.append(100 * client.score_test(test).correct / len(test))
        assert every.rounds[-1]["accuracy"][domain] == pytest.approx(np.mean(each))
        assert every.rounds[-1]["spread_over_nodes"][domain] == pytest.approx(np.std(each, ddof=1))
    shown = compare([every.folder]).text(1000)
    assert "personal on all" in shown
    assert "standard deviation over nodes scan " in shown


# --- models that nobody has trained -------------------------------------------------------------------------


SHORT = "train.epochs=1 allocation.share=0.05 evaluate.figures=false"
HALF = f"{SHORT} federation.participation=0.5"
COUNT = "evaluate.untrained=count"


def late(run: Run) -> list[list[int]]:
    """Return by round the nodes that had trained in no round until then, of four."""
    trained = accumulate(({*line["nodes"]} for line in run.rounds), operator.or_)
    return [sorted({*range(4)} - had) for had in trained]


@pytest.mark.parametrize("typed", ["fedbn model.name=cnn_bn", "fedproto"])
def test_they_are_left_out_unless_they_count(run_inline: InlineRun, typed: str) -> None:
    out, counted = (run_inline(f"rounds=2 seed=3 {HALF} method={typed} {more}") for more in ("", COUNT))
    assert out.results["weights_sha256"] == counted.results["weights_sha256"]
    missing = late(out)
    assert missing[0] and late(counted) == missing
    for run in (out, counted):
        assert [line.get("untrained", []) for line in run.rounds] == missing
        assert run.results["untrained"] == {str(i): nodes for i, nodes in enumerate(missing, 1) if nodes}
        assert len(run.events("untrained")) == sum(map(bool, missing))
    domains = [*out.results["domains"]]  # one node of each, in their order
    for line, other, nodes in zip(out.rounds, counted.rounds, missing, strict=True):
        assert None not in other["accuracy"].values()
        assert line["accuracy"] == other["accuracy"] | {domains[i]: None for i in nodes}
        assert (line["avg"] is None) == bool(nodes)  # over fewer domains it would be another number


def test_who_has_trained_is_known_after_a_resume_and_to_rescore(tmp_path: Path) -> None:
    run, to = start(tmp_path / "runs", 4, method="local", rounds=1, seed=3, set=HALF), tmp_path / "again"
    for _ in range(2):  # the second time all is there
        command.rescore([str(run.folder), f"output-dir={to}", "evaluate.untrained=leave_out,count", "jobs=1"])
    lines = [Run(path).rounds[-1] for path in to.iterdir()]
    assert all(line["untrained"] == run.rounds[-1]["untrained"] for line in lines)
    assert sorted([*line["accuracy"].values()].count(None) for line in lines) == [0, 2]
    longer = resume(tmp_path / "runs", 4, rounds=3)
    assert [line.get("untrained", []) for line in longer.rounds] == late(longer)


OWN_PARTS = ["local", "fdse", "fedproto", "fedtgp", "fedsa", "fedpall", "fedgh", "fedrep", "fedcode", "fedthe"]
OWN_PARTS += ["fedmd dataset.public=0.05", "fedbn model.name=cnn_bn", "fedprox model.name=cnn_bn model.bn=local"]
OWN_PARTS += ["fedavg modules=[f2dc] modules.f2dc.local_modules=local modules.f2dc.eval_modules=client_mean"]
NO_OWN_PARTS = ["fedavg", "scaffold", "feddyn", "moon", "fedsr", "fedala", "ditto", "fedpac", "fedavg-ft", "fedseproto"]
NO_OWN_PARTS += ["fedproto method.share_weights=true", "tent model.name=cnn_bn"]


@pytest.mark.parametrize("typed", OWN_PARTS + NO_OWN_PARTS)
def test_which_methods_have_parts_that_only_a_node_trains(typed: str) -> None:
    method, _, more = typed.partition(" ")
    config = config_of(f"method={method} {more}")
    assert setup.has_own_parts(config, setup.initial_model(config)) is (typed in OWN_PARTS)
