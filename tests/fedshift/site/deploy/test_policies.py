"""``fedshift policy`` and ``fedshift supernode --policy``: the commands, what they write and what Flower is given."""

import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from flwr.common.config import parse_config_args
from real_node import charge
from support import ROOT, refusal_of
from typer.testing import CliRunner

from fedshift.cli import app
from fedshift.site.deploy import policies
from fedshift.site.deploy import supernode as supernode_module
from fedshift_app.config.resolving import resolve
from fedshift_app.flower.internals import make_context
from fedshift_app.node import ledger, policy, setup, state_folder
from fedshift_app.node.policy import BUILT_IN, Loaded, Policy
from fedshift_core import disclosure
from fedshift_core.errors import ConfigError, RequestError

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(state_folder.STATE_DIR, str(tmp_path / "state"))


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_init_writes_is_the_policy_it_begins_with(name: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    ended = RUNNER.invoke(app, ["policy", "init", str(file), "--from", name])
    assert ended.exit_code == 0, ended.output
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert policy.load(str(file)).policy == BUILT_IN[name]
    text = file.read_text()
    assert all(f"\n{key}:" in text or f"\n# {key}:" in text for key in Policy.model_fields)
    again = RUNNER.invoke(app, ["policy", "init", str(file)])
    assert "exists, and is not overwritten" in str(again.exception)


def test_the_sections_of_a_written_file_serve_once_they_are_no_comments(tmp_path: Path) -> None:
    text = policies.template(BUILT_IN["strict"])
    names = ("privacy", "budget", "secure_sums")
    kept = [
        line.removeprefix("# ") if line.startswith(tuple(f"# {name}:" for name in names)) or (line.startswith("#   ")
        and line.partition(":")[0].strip("# ") in ("name", "epsilon", "delta", "nodes", "least", "trusted")) else line
        for line in text.splitlines()
    ]  # fmt: skip
    read = Policy.model_validate(yaml.safe_load("\n".join(kept)))
    assert read.privacy and read.budget and read.secure_sums
    assert read.privacy.delta == 1e-5


def test_check_says_the_hash_or_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "policy.yaml"
    file.write_text("least_images: 9")
    file.chmod(0o600)
    ended = RUNNER.invoke(app, ["policy", "check", "policy.yaml"])
    assert ended.output == f"a policy: {file} (SHA-256 {policy.load(str(file)).sha256})\n"
    file.write_text("least_image: 9")
    wrong = RUNNER.invoke(app, ["policy", "check", "policy.yaml"])
    assert isinstance(wrong.exception, ConfigError) and "did you mean least_images?" in str(wrong.exception)


def test_explain_says_every_key_and_what_is_spent(tmp_path: Path) -> None:
    ended = RUNNER.invoke(app, ["policy", "explain"])
    assert all(f"\n  {key} " in ended.output for key in Policy.model_fields)
    assert "any, but fedpall, fedplvm (for what they send): Methods that a run may use" in ended.output
    file = tmp_path / "policy.yaml"
    file.write_text("budget: {epsilon: 4}\nmethods: [fedavg]\ncontributions: []")
    file.chmod(0o600)
    assert "spent: nothing yet" in RUNNER.invoke(app, ["policy", "explain", str(file)]).output
    (tmp_path / "images").mkdir()
    own = ledger.of_images(tmp_path / "images")
    charge(own, "run", 0.01)
    own.change(lambda book, now: book.model_copy(update={"partition": {"bn_images": 8}}))
    said = RUNNER.invoke(app, ["policy", "explain", str(file)]).output
    assert f"partition: bn_images: 8; images in {tmp_path / 'images'}" in said and "cannot be written" not in said
    assert "of 4 in 1 round of 1 run, images in" in said
    assert " [fedavg]: Methods" in said and " []: What a method" in said and " budget.epsilon " in said
    file.write_text(f"secure_sums: {{nodes: 3, trusted: [SHA256:{'a' * 43}, SHA256:{'b' * 43}]}}")
    said = RUNNER.invoke(app, ["policy", "explain", str(file)]).output
    assert "secure_sums.nodes" in said and "b" * 43 in said


def test_the_methods_that_strict_refuses_are_those_of_single_images() -> None:
    assert policies.refused_methods(BUILT_IN["strict"]) == ["fedpall", "fedplvm"]
    assert policies.refused_methods(BUILT_IN["open"]) == []


def test_the_page_has_the_four_words_as_the_code_has_them() -> None:
    page = (ROOT / "docs" / "deploy" / "policy.md").read_text(encoding="utf-8")
    table = [line for line in str(disclosure.__doc__).splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(disclosure.WORDS) and "\n".join(table).replace("``", "`") in page


# --- what Flower is given -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        ["--insecure", "--node-config", 'domain="scan" partition-id=0'],
        ["--node-conf", 'domain="scan"', "--insecure"],
        ['--node-config=domain="scan"', "--insecure"],
        ["--insecure"],
    ],
)
def test_a_policy_reaches_the_node_through_its_configuration(options: list[str]) -> None:
    insecure, name, text = policies.with_policy(options, Loaded(Policy(), "/a folder/policy.yaml", "ab" * 32))
    config = parse_config_args([text])
    assert (insecure, name) == ("--insecure", "--node-config")
    assert config["policy"] == "/a folder/policy.yaml" and config["policy-sha256"] == "ab" * 32
    assert config.get("domain", "scan") == "scan"


@pytest.mark.parametrize(
    ("options", "source", "message"),
    [
        (["--node-config", "node.toml"], "strict", "in a .toml write policy yourself"),
        (["--node-config", 'domain="scan" policy="open"'], "strict", "names a policy already"),
        ([], '/a"b', "a path without quotes"),
        ([], '/a" policy="open', "a path without quotes"),
        ([], "/a\\b", "a path without quotes"),
        (["--node-config", "domain=1", "--node-c=partition-id=0"], "strict", "--node-config is given 2 times"),
        (["--node-config", 'domain="scan'], "strict", "cannot be read with --policy strict; expected are pairs"),
    ],
)
def test_what_cannot_be_handed_over_is_refused(options: list[str], source: str, message: str) -> None:
    assert message in refusal_of(ConfigError, policies.with_policy, options, Loaded(Policy(), source))


def test_a_supernode_reads_its_policy_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(supernode_module, "serve", lambda given, **_: started.append(given))
    file = tmp_path / "policy.yaml"
    file.write_text("least_images: 9")
    file.chmod(0o620)
    words = ["supernode", "--insecure", "--node-config", 'domain="scan"']
    refused = RUNNER.invoke(app, [*words, "--policy", str(file)])
    assert "others can write it (mode 0620)" in str(refused.exception)
    assert started == []
    file.chmod(0o600)
    ended = RUNNER.invoke(app, [*words, "--policy", str(file)])
    assert f"policy: {file} (SHA-256 {policy.load(str(file)).sha256})" in ended.stderr
    RUNNER.invoke(app, [*words, "--policy", "open"])
    assert [parse_config_args([given[-1]])["policy"] for given in started] == [str(file), "open"]
    assert "policy: strict (built in)" in RUNNER.invoke(app, words).stderr
    assert started[-1] == [*words[1:-1], f'{words[-1]} policy="strict" policy-sha256=""']
    for config in ("partition-id=0 num-partitions=4", 'policy="open"'):
        RUNNER.invoke(app, ["supernode", "--insecure", "--root-certificates", "policy=.crt", "--node-config", config])
    assert [parse_config_args([given[-1]])["policy"] for given in started[-2:]] == ["strict", "open"]


def test_without_a_policy_a_node_is_strict_also_towards_who_takes_it_for_a_simulated_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(supernode_module, "serve", lambda given, **_: started.append(given))
    for more in ([], ["--node-config", "partition-id=0 num-partitions=4"]):
        RUNNER.invoke(app, ["supernode", "--insecure", *more])
        context = make_context(1, parse_config_args([started[-1][-1]]), {})
        refusal = refusal_of(RequestError, setup.place, resolve({}), context, "simulation")
        assert "it takes no part in a simulation" in refusal
