"""The policy file: its keys, its owner and mode, and what is wrong with it in one line."""

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from support import refusal_of

from fedshift_app.node import policy
from fedshift_app.node.policy import BUILT_IN, Policy
from fedshift_core.errors import ConfigError

KEY = f"SHA256:{'a+/' * 14}b"  # 43 letters


def written(tmp_path: Path, text: str, mode: int = 0o600) -> str:
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    file.chmod(mode)
    return str(file)


def loaded(tmp_path: Path, text: str) -> Policy:
    return policy.load(written(tmp_path, text)).policy


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("# nothing but a comment", "least_images", 5),
        ("methods: fedavg", "methods", ("fedavg",)),
        ("networks: [cnn, 'torchvision:resnet18']", "networks", ("cnn", "torchvision:resnet18")),
        ("contributions: []", "contributions", ()),
        ("largest_in: null", "largest_in", None),
        ("privacy: {epsilon: 2}", "privacy", policy.RequiredNoise(epsilon=2)),
        ("budget: {epsilon: 9.5, delta: 1.0e-6}", "budget", policy.Budget(epsilon=9.5, delta=1e-6)),
        ("secure_sums: {nodes: 3}", "secure_sums", policy.SecureSums(nodes=3)),
        (f"secure_sums: {{nodes: 2, trusted: [{KEY}]}}", "secure_sums", policy.SecureSums(nodes=2, trusted=(KEY,))),
    ],
)
def test_a_key_is_read(text: str, key: str, value: Any, tmp_path: Path) -> None:
    assert getattr(loaded(tmp_path, text), key) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("method: fedavg", "unknown key method; there are methods, networks, "),
        ("metods: fedavg", "did you mean methods?"),
        ("methods: [fedavgg]", "unknown method 'fedavgg'"),
        ("methods: []", "methods: Value should have at least 1 item"),
        ("methods: [any, fedavg]", "methods: any stands alone, found ['any', 'fedavg']"),
        ("networks: [cnnn]", "unknown model 'cnnn'"),
        ("features: [histograms]", "unknown feature 'histograms'"),
        ("least_images: 0", "least_images: Input should be greater than or equal to 1, found 0"),
        ("least_images: true", "least_images: expected a number, found True"),  # not 1, which hides nothing
        ("rounds_per_day: yes", "rounds_per_day: expected a number, found True"),
        ("largest_out: on", "largest_out: expected a number, found True"),
        ("budget: {epsilon: true}", "budget.epsilon: expected a number, found True"),
        ("figures: some", "figures: "),
        ("largest_in: 0", "largest_in: "),
        ("rounds_per_day: -1", "rounds_per_day: "),
        ("privacy: {}", "privacy.epsilon is missing"),
        ("privacy: {name: gdp, epsilon: 1}", "privacy.name: "),
        ("budget: {epsilon: 0}", "budget.epsilon: "),
        ("budget: {epsilon: .inf}", "budget.epsilon: "),
        ("budget: {epsilon: 1, delta: 1}", "budget.delta: "),
        ("budget: {epsilon: 1, rounds: 3}", "unknown key budget.rounds; there are epsilon, delta"),
        ("secure_sums: {nodes: 1}", "secure_sums.nodes: "),
        ("secure_sums: {nodes: 2, trusted: [north]}", "secure_sums.trusted.0: String should match pattern '^SHA256:"),
        ("[methods]", "expected a mapping of keys to values"),
        ("methods: [", "cannot be read as YAML: line 2"),
        ("least_images: 3\nleast_images: 5", "comes twice"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    said = refusal_of(ConfigError, loaded, tmp_path, text)
    assert said.startswith(f"policy {tmp_path}/policy.yaml: ") and message in said, said


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_refused(mode: int, tmp_path: Path) -> None:
    said = refusal_of(ConfigError, policy.load, written(tmp_path, "", mode))
    assert f"others can write it (mode {mode:04o}): chmod go-w" in said


@pytest.mark.parametrize("mode", [0o400, 0o644])
def test_a_file_that_others_can_read_is_taken(mode: int, tmp_path: Path) -> None:
    assert policy.load(written(tmp_path, "", mode)).policy == Policy()


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, "")
    user = os.geteuid()
    monkeypatch.setattr(policy.os, "geteuid", lambda: user + 1)
    assert f"it belongs to user {user}, expected is {user + 1}, who runs the node" in refusal_of(
        ConfigError, policy.load, file
    )


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none.yaml", "No such file"), (tmp_path, "Is a directory")):
        said = refusal_of(ConfigError, policy.load, str(path))
        assert reason in said and "expected a YAML file, strict or open" in said
    os.mkfifo(tmp_path / "pipe", 0o600)
    holder = os.open(tmp_path / "pipe", os.O_RDWR)
    try:
        assert "it is no file" in refusal_of(ConfigError, policy.load, str(tmp_path / "pipe"))
    finally:
        os.close(holder)


def test_the_hash_is_that_of_the_file(tmp_path: Path) -> None:
    first = policy.load(written(tmp_path, "least_images: 3"))
    assert first.sha256 == hashlib.sha256(b"least_images: 3").hexdigest()
    second = policy.load(written(tmp_path, "least_images: 4"))
    assert first.sha256 != second.sha256 and str(second).endswith(f"(SHA-256 {second.sha256})")
    assert (first.policy.least_images, second.policy.least_images) == (3, 4)  # nothing is remembered of a file


def test_the_built_in_ones() -> None:
    strict, everything = BUILT_IN["strict"], BUILT_IN["open"]
    assert (strict.least_images, strict.figures, strict.features) == (5, False, ())
    assert (everything.least_images, everything.figures) == (1, True)
    assert everything.allows("features", "anything") and everything.largest_in is None
    assert str(policy.load("strict")) == "strict (built in)"
