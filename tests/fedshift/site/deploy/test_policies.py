"""``fedshift policy`` and ``fedshift supernode --policy``: the commands, what they write and what Flower is given."""

import stat
from pathlib import Path
from typing import Any

import pytest
from flwr.common.config import parse_config_args
from real_node import charge
from refusals import refused
from support import invoked

from fedshift.site.deploy import policies
from fedshift.site.deploy import supernode as supernode_module
from fedshift_app.config.resolving import resolve
from fedshift_app.flower.internals import make_context
from fedshift_app.node import ledger, policy, setup
from fedshift_app.node.policy import BUILT_IN, Loaded, Policy
from fedshift_core.errors import ConfigError, RequestError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a policy."""
    (tmp_path / "policy.yaml").write_text("least_images: 9")
    (tmp_path / "policy.yaml").chmod(0o600)
    return tmp_path / "policy.yaml"


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_init_writes_is_the_policy_it_begins_with(name: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    ended = invoked("policy", "init", file, "--from", name)
    assert ended.exit_code == 0, ended.output
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert policy.load(str(file)).policy == BUILT_IN[name]
    text = file.read_text()
    assert all(f"\n{key}:" in text or f"\n# {key}:" in text for key in Policy.model_fields)
    again = invoked("policy", "init", file)
    assert "exists, and is not overwritten" in str(again.exception)


def test_check_says_the_hash_or_what_is_wrong(file: Path) -> None:
    ended = invoked("policy", "check", file)
    assert ended.output == f"a policy: {file} (SHA-256 {policy.load(str(file)).sha256})\n"
    file.write_text("least_image: 9")
    wrong = invoked("policy", "check", file)
    assert isinstance(wrong.exception, ConfigError) and "least_images?" in str(wrong.exception)


def test_explain_says_every_key_and_what_is_spent(file: Path, tmp_path: Path) -> None:
    def said(*words: object) -> str:
        return invoked("policy", "explain", *words).output

    assert all(f"\n  {key} " in said() for key in Policy.model_fields) and "fedpall, fedplvm" in said()
    file.write_text("budget: {epsilon: 4}\nmethods: [fedavg]\ncontributions: []")
    assert "spent: nothing yet" in said(file)
    (tmp_path / "images").mkdir()
    own = ledger.of_images(tmp_path / "images")
    charge(own, "run", 0.01)
    own.change(lambda book, now: book.model_copy(update={"partition": {"bn_images": 8}}))
    for text in (f"bn_images: 8; images in {tmp_path / 'images'}", "of 4 in 1 round of 1 run", " [fedavg]", " []"):
        assert text in said(file), text
    file.write_text(f"secure_sums: {{nodes: 3, trusted: [SHA256:{'a' * 43}, SHA256:{'b' * 43}]}}")
    assert "b" * 43 in said(file)


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
def test_a_policy_reaches_the_node_through_its_configuration(options: Any) -> None:
    *before, text = policies.with_policy(options, Loaded(Policy(), "/a folder/policy.yaml", "ab" * 32))
    config = parse_config_args([text])
    assert before == ["--insecure", "--node-config"] and config.get("domain", "scan") == "scan"
    assert config["policy"] == "/a folder/policy.yaml" and config["policy-sha256"] == "ab" * 32


@pytest.mark.parametrize(
    ("options", "source", "named"),
    [
        (["--node-config", "node.toml"], "strict", ".toml"), (["--node-config", 'policy="open"'], "strict", "policy"),
        ([], '/a"b', "quotes"), ([], '/a" policy="open', "quotes"), ([], "/a\\b", "quotes"),
        (["--node-config", "domain=1", "--node-c=partition-id=0"], "strict", "2 times"),
        (["--node-config", 'domain="scan'], "strict", "--policy strict"),
    ],
)  # fmt: skip
def test_what_cannot_be_handed_over_is_refused(options: Any, source: str, named: str) -> None:
    with refused(ConfigError, named):
        policies.with_policy(options, Loaded(Policy(), source))


def test_a_supernode_reads_its_policy_before_it_starts_and_is_strict_without_one(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(supernode_module, "serve", lambda given, **_: started.append(parse_config_args([given[-1]])))
    words = ["supernode", "--insecure", "--node-config", "partition-id=0 num-partitions=4"]
    file.chmod(0o620)
    assert "0620" in str(invoked(*words, "--policy", file).exception) and started == []
    file.chmod(0o600)
    ended = invoked(*words, "--policy", file)
    assert f"policy: {file} (SHA-256 {policy.load(str(file)).sha256})" in ended.stderr
    assert "policy: strict (built in)" in invoked(*words).stderr
    for more in (["--policy", "open"], ["--root-certificates", "policy=.crt"]):
        invoked(*words[:2], *more, *words[2:])
    invoked(*words[:3], 'policy="open"')
    assert [config["policy"] for config in started] == [str(file), "strict", "open", "strict", "open"]
    # Also towards who takes it for a simulated one.
    context = make_context(1, started[1], {})
    with pytest.raises(RequestError, match="no part in a simulation"):
        setup.place(resolve({}), context, "simulation")
