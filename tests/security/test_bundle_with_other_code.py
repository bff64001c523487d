"""Whoever submits a run changes six lines of the code that guards a node: it answers with its own, or not at all.

On code that ran the run's bundle, the server's log got exact class counts and the path of the node's key, and the
node's log of what left it stayed empty.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from flwr.app import Message
from flwr.cli.build import build_fab_from_disk
from real_federation import TINY, Federation, copy_of_app, federation
from real_node import AppOfNode
from support import ROOT

from fedshift.run.launch import processes
from fedshift.site.deploy import exporting
from fedshift_app.config import resolving as configuration
from fedshift_app.node import own_code, state_folder
from fedshift_core.wire.names import DECLINED

#: Written over the owner's checks and the log; what it finds goes to the server with the reply.
OURS, BEFORE = "    node_owner.admit_code(context)\n", "    was_packed = has_packed(msg.content)\n"
THEIRS = """
    import os
    own = node_data.own_images(*setup.open_message(config_record(msg.content, CONFIG), context))
    raise FedShiftError(f"LEAK {np.bincount(own.train.y)} {[v for k, v in os.environ.items() if 'KEY' in k]}")
"""
LOGGED = "out_log.refusal(kind, msg, context, reason)"


def changed(folder: Path) -> Path:
    """Return a copy of the app with a ClientApp that tells all, and leaves a mark where it is imported."""
    app = copy_of_app(folder)
    file = app / "fedshift_app" / "client_app.py"
    text = file.read_text()
    assert OURS in text and BEFORE in text and LOGGED in text
    mark = f"open({str(folder / 'mark')!r}, 'w').close()\n"
    file.write_text(text.replace(OURS, "").replace(BEFORE, THEIRS).replace(LOGGED, "reason") + mark)
    return app


def hash_of(app: Path) -> str:
    return own_code.of_bundle(build_fab_from_disk(app)).sha256


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    with federation(
        tmp_path_factory.mktemp("site"), nodes=3, images="dataset.domains=[scan,sketch] allocation.share=0.4"
    ) as made:
        yield made


@pytest.mark.slow
@pytest.mark.long
def test_six_changed_lines_are_refused_and_where_the_owner_trusts_them_not_run(site: Federation) -> None:
    app = changed(site.home / "changed")
    theirs, ours = hash_of(app), own_code.installed()
    assert theirs != ours
    said = site.run(app, set="federation.min_nodes=3")
    assert "LEAK" not in said, said
    why = f"runs {ours} (0.1.0), not {theirs} (0.1.0): install that, or name it in code.trusted"
    assert said.count(why) == 5, said  # a line for each node, and two in the error
    assert said.index("0 of 3 nodes that can take part answered") < said.rindex(why)
    assert not (app / "mark").exists()
    assert {(line["code"], line["code_of_run"]) for line in site.replies()} == {(ours, theirs)}

    sums = f"secure_sums: {{nodes: 3, trusted: {json.dumps(site.fingerprints)}}}\n"  # signed by keys that nobody reads
    site.policy.write_text(f"code: {{trusted: ['{theirs}']}}\n{sums}")
    said = site.run(app, set="federation.min_nodes=3 federation.secure_sums=on aggregation.weights=equal")
    assert "LEAK" not in said and "round 1/1" in said, said
    assert not (app / "mark").exists()
    trained = [line for line in site.replies() if line["message"] == "train"]
    assert len(trained) == 3
    assert {(line["code"], line["code_of_run"]) for line in trained} == {(ours, theirs)}


@pytest.mark.slow
@pytest.mark.long
def test_the_processes_that_work_on_messages_do_not_have_the_nodes_key(site: Federation) -> None:
    """Neither in their environment nor in their command; the SuperNode itself was started with it."""
    mark = site.flower.env[processes.MARK]
    found = {}
    for process in psutil.process_iter():
        try:
            environment, command = process.environ(), process.cmdline()
        except psutil.Error:  # another user's, or gone
            continue
        program = next((word for word in command if "deploy.warm" in word or word.endswith("superexec.py")), "")
        if environment.get(processes.MARK) == mark and program:
            found[process.pid] = (program, " ".join([*command, *environment.values()]))
    assert len(found) == 5  # one of the nodes has no warm process
    for _, text in found.values():
        assert "node-0-scan" not in text and ".key" not in text


# --- without processes -----------------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppOfNode:
    monkeypatch.setenv(state_folder.STATE_DIR, str(tmp_path / "state"))
    monkeypatch.setattr(own_code, "_of_run", None)
    config = configuration.resolve({"experiment": "handwritten", "set": TINY})
    policy = tmp_path / "policy.yaml"
    policy.write_text("least_images: 1\n")
    policy.chmod(0o600)
    return AppOfNode(exporting.export(config, 2, tmp_path / "nodes")[0], policy=str(policy))


def policy_of(node: AppOfNode) -> Path:
    return Path(str(node.context.node_config["policy"]))


def brought(app: Path) -> None:
    own_code.take(own_code.note(build_fab_from_disk(app)))


def reason_of(reply: Message) -> str:
    assert reply.has_error() and reply.error.code == DECLINED
    return str(reply.error.reason)


def test_the_apps_own_bundle_is_answered(node: AppOfNode, tmp_path: Path) -> None:
    brought(ROOT)
    assert not node.ask("train").has_error()
    assert own_code.installed() == hash_of(ROOT) == hash_of(copy_of_app(tmp_path / "copy"))


@pytest.mark.parametrize("place", ["conf/methods/fedavg.yaml", "fedshift_core/errors.py"])
def test_one_more_byte_is_refused_and_in_the_log(node: AppOfNode, tmp_path: Path, place: str) -> None:
    app = copy_of_app(tmp_path / "copy")
    with (app / place).open("a") as file:
        file.write("\n")
    brought(app)
    reason = reason_of(node.ask("train"))
    assert hash_of(app) in reason and own_code.installed() in reason
    (log,) = (tmp_path / "state").glob("*/out.jsonl")
    first = json.loads(log.read_text().splitlines()[0])
    assert (first["code"], first["code_of_run"]) == (own_code.installed(), hash_of(app))


@pytest.mark.parametrize("place", ["torch/__init__.py", "fedshift_app/more.py", "sitecustomize.py"])
def test_one_more_file_is_refused(node: AppOfNode, tmp_path: Path, place: str) -> None:
    app = copy_of_app(tmp_path / "copy")
    (app / place).parent.mkdir(exist_ok=True)
    (app / place).write_text("")
    project = app / "pyproject.toml"
    project.write_text(project.read_text().replace("fab-include = [", f'fab-include = [\n    "{place}",'))
    brought(app)
    assert hash_of(app) in reason_of(node.ask("train"))


def test_another_version_that_the_owner_names_is_answered_by_the_nodes_own(node: AppOfNode, tmp_path: Path) -> None:
    app = copy_of_app(tmp_path / "copy")
    core = app / "fedshift_core" / "__init__.py"
    core.write_text(core.read_text().replace("0.1.0", "0.2.0"))
    project = app / "pyproject.toml"
    project.write_text(project.read_text().replace('version = "0.1.0"', 'version = "0.2.0"'))
    brought(app)
    assert reason_of(node.ask("train")).startswith(f"runs {own_code.installed()} (0.1.0), not {hash_of(app)} (0.2.0): ")
    policy_of(node).write_text(f"least_images: 1\ncode: {{trusted: ['{hash_of(app)}']}}\n")
    assert not node.ask("train").has_error()


def test_another_app_is_refused_whatever_its_code(node: AppOfNode, tmp_path: Path) -> None:
    app = copy_of_app(tmp_path / "copy")
    project = app / "pyproject.toml"
    project.write_text(project.read_text().replace('publisher = "fedshift"', 'publisher = "other"'))
    brought(app)
    assert reason_of(node.ask("query")).endswith("it runs fedshift/fedshift, not other/fedshift")


def test_a_node_whose_files_were_changed_says_that_it_must_be_started_again(
    node: AppOfNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it imports by and by would be of another version than what it has imported."""
    monkeypatch.setattr(own_code, "APP", copy_of_app(tmp_path / "installed"))
    own_code._first.cache_clear()
    try:
        brought(own_code.APP)
        assert not node.ask("query").has_error()
        (own_code.APP / "fedshift_core" / "errors.py").touch()
        assert not node.ask("query").has_error()
        with (own_code.APP / "fedshift_core" / "errors.py").open("a") as file:
            file.write("# edited\n")
        assert "FedShift was changed on its disk while it ran SHA256:" in reason_of(node.ask("query"))
        policy_of(node).write_text("code: {trusted: ['" + hash_of(own_code.APP) + "']}\n")
        assert reason_of(node.ask("query")).endswith("the node must be started again")
    finally:
        own_code._first.cache_clear()
