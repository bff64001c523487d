"""Whoever submits a run changes six lines of the code that guards a node: it answers with its own, or not at all.

On code that ran the run's bundle, the server's log got exact class counts and the path of the node's key, and the
node's log of what left it stayed empty.
"""

import contextlib
import functools
import json
from pathlib import Path

import psutil
import pytest
from flwr.cli.build import build_fab_from_disk
from guarded_node import Owner, refused, run
from real_federation import copy_of_app, federation
from real_node import AppOfNode
from support import ROOT

from fedshift.run.launch import processes
from fedshift.site.deploy.exporting import NodeFolder
from fedshift_app.node import own_code

#: Written over the owner's checks and the log; what it finds goes to the server with the reply.
OURS, BEFORE = "    owner.admit_code(context)\n", "    was_packed = has_packed(msg.content)\n"
THEIRS = """
    import os
    own = node_data.own_images(*setup.open_message(config_record(msg.content, CONFIG), context))
    raise FedShiftError(f"LEAK {np.bincount(own.train.y)} {[v for k, v in os.environ.items() if 'KEY' in k]}")
"""
LOGGED = "out_log.refusal(kind, msg, context, reason)"


def hash_of(app: Path) -> str:
    return own_code.of_bundle(build_fab_from_disk(app)).sha256


@pytest.mark.slow
@pytest.mark.long
def test_six_changed_lines_are_refused_and_where_the_owner_trusts_them_not_run(tmp_path: Path) -> None:
    app = copy_of_app(tmp_path / "changed")
    file, mark = app / "fedshift_app" / "client_app.py", app / "mark"  # left where the file is imported
    text = file.read_text()
    assert OURS in text and BEFORE in text and LOGGED in text
    leaks = text.replace(OURS, "").replace(BEFORE, THEIRS).replace(LOGGED, "reason")
    file.write_text(f"{leaks}open({str(mark)!r}, 'w').close()\n")
    theirs, ours = hash_of(app), own_code.installed()
    images = "dataset.domains=[scan,sketch] allocation.share=0.4"
    with federation(tmp_path / "site", nodes=3, images=images) as site:
        said = site.run(app, set="federation.min_nodes=3")
        assert "LEAK" not in said and "0 of 3 nodes that can take part answered" in said, said
        assert f"runs {ours} (0.1.0), not {theirs} (0.1.0)" in said
        sums = f"secure_sums: {{nodes: 3, trusted: {json.dumps(site.fingerprints)}}}\n"
        site.policy.write_text(f"code: {{trusted: ['{theirs}']}}\n{sums}")
        said = site.run(app, set="federation.min_nodes=3 federation.secure_sums=on aggregation.weights=equal")
        assert "LEAK" not in said and "round 1/1" in said and not mark.exists(), said
        assert {(line["code"], line["code_of_run"]) for line in site.replies()} == {(ours, theirs)}
        assert len([line for line in site.replies() if line["message"] == "train"]) == 3
        # The processes that work on messages have the node's key neither in their environment nor in their command.
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):  # another user's, or gone
                environment, command = process.environ(), process.cmdline()
                works = any("deploy.warm" in word or word.endswith("superexec.py") for word in command)
                if works and environment.get(processes.MARK) == site.flower.env[processes.MARK]:
                    found.append(" ".join([*command, *environment.values()]))
        assert len(found) == 5  # one of the nodes has no warm process
        assert not any(word in text for text in found for word in ("node-0-scan", ".key"))


# --- without processes -----------------------------------------------------------------------------------


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """Return the folder of an app that a test may change."""
    return copy_of_app(tmp_path / "copy")


@pytest.fixture
def node(folder: NodeFolder, policy: Owner, monkeypatch: pytest.MonkeyPatch) -> AppOfNode:
    monkeypatch.setattr(own_code, "_of_run", None)
    return run(folder, policy=policy(least_images=1))


def brought(app: Path) -> str:
    bundle = build_fab_from_disk(app)
    own_code.take(own_code.note(bundle))
    return own_code.of_bundle(bundle).sha256


own_bundle = functools.cache(lambda: build_fab_from_disk(ROOT))


def test_a_copy_of_the_app_has_the_hash_of_what_is_installed(app: Path) -> None:
    assert own_code.installed() == own_code.of_bundle(own_bundle()).sha256 == hash_of(app)


def change(file: Path, old: str, new: str) -> None:
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


@pytest.mark.parametrize(
    "place", ["conf/methods/fedavg.yaml", "fedshift_core/errors.py", "torch/__init__.py", "sitecustomize.py"]
)
def test_one_more_byte_or_file_is_refused_and_in_the_log(
    node: AppOfNode, app: Path, tmp_path: Path, place: str
) -> None:
    own_code.take(own_code.note(own_bundle()))
    assert not node.ask("query").has_error()
    change(app / "pyproject.toml", "fab-include = [", f'fab-include = [\n    "{place}",')
    (app / place).parent.mkdir(exist_ok=True)
    with (app / place).open("a") as file:
        file.write("\n")
    theirs = brought(app)
    reason = refused(node, "train")
    assert theirs in reason and own_code.installed() in reason
    (log,) = (tmp_path / "state").glob("*/out.jsonl")
    codes = [(line.get("code"), line.get("code_of_run")) for line in map(json.loads, log.read_text().splitlines())]
    assert (own_code.installed(), theirs) in codes


def test_another_version_that_the_owner_names_is_answered_by_the_nodes_own(
    node: AppOfNode, app: Path, policy: Owner
) -> None:
    change(app / "fedshift_core" / "__init__.py", "0.1.0", "0.2.0")
    change(app / "pyproject.toml", 'version = "0.1.0"', 'version = "0.2.0"')
    theirs = brought(app)
    assert refused(node, "train").startswith(f"runs {own_code.installed()} (0.1.0), not {theirs} (0.2.0): ")
    policy(least_images=1, code={"trusted": [theirs]})
    assert not node.ask("train").has_error()
    change(app / "pyproject.toml", 'publisher = "fedshift"', 'publisher = "other"')  # another app, whatever its code
    brought(app)
    assert "fedshift/fedshift, not other/fedshift" in refused(node, "query")


def test_a_node_whose_files_were_changed_says_that_it_must_be_started_again(
    node: AppOfNode, app: Path, policy: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it imports by and by would be of another version than what it has imported."""
    monkeypatch.setattr(own_code, "APP", app)
    own_code._first.cache_clear()
    try:
        theirs = brought(app)
        (app / "fedshift_core" / "errors.py").touch()
        assert not node.ask("query").has_error()
        with (app / "fedshift_core" / "errors.py").open("a") as file:
            file.write("# edited\n")
        assert "changed on its disk" in refused(node, "query")
        policy(code={"trusted": [theirs]})
        assert "started again" in refused(node, "query")
    finally:
        own_code._first.cache_clear()
