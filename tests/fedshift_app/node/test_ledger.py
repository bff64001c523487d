"""The ledger of a node: what it has spent over all runs, across restarts, kills and nodes of the same images."""

import math
import os
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from real_node import charge
from scipy.stats import norm
from support import ROOT, refusal_of

from fedshift_app.config.sections import PrivacyConfig
from fedshift_app.node import ledger, state_folder
from fedshift_app.node.ledger import DAY, Ledger
from fedshift_core import atomic_io
from fedshift_core.dp_accounting import ORDERS, spending
from fedshift_core.errors import FedShiftError


@pytest.fixture
def own(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "state" / "ledgers" / "a.json", "/images", clock=lambda: 1_000_000.0)


# --- what is spent --------------------------------------------------------------------------------------


def test_rounds_of_private_training_compose_with_all_others(own: Ledger) -> None:
    """Against dp-accounting itself, over two runs with noise of their own, and noised updates besides."""
    event, rdp = pytest.importorskip("dp_accounting").dp_event, pytest.importorskip("dp_accounting.rdp")
    first = spending(PrivacyConfig(name="dp-sgd", noise_multiplier=3.0), 200, 32, 2, 9, prototypes=True)
    second = spending(PrivacyConfig(name="dp-sgd", noise_multiplier=5.0), 150, 32, 1, 9, prototypes=False)
    local = PrivacyConfig(name="local-dp", epsilon=0.5)
    direct = rdp.RdpAccountant(ORDERS)
    for run, spends, rounds in (("a", first, 3), ("b", second, 2)):
        for _ in range(rounds):
            assert charge(own, run, spends) == ""
        noise = event.GaussianDpEvent(spends.noise_multiplier)
        direct.compose(event.PoissonSampledDpEvent(spends.sampling_rate, noise), rounds * spends.steps)
    direct.compose(event.GaussianDpEvent(3.0), 3)  # of prototypes
    book = own.read()
    assert [(run.rounds, len(run.sampled)) for run in book.runs.values()] == [(3, 1), (2, 1)]
    assert book.epsilon(1e-5) == pytest.approx(direct.get_epsilon(1e-5), rel=1e-6)
    charge(own, "c", local.mu_squared)
    direct.compose(event.GaussianDpEvent(local.mu_squared**-0.5))
    assert own.read().epsilon(1e-5) == pytest.approx(direct.get_epsilon(1e-5), rel=1e-6)
    direct.compose(event.PoissonSampledDpEvent(32 / 150, event.GaussianDpEvent(5.0)), second.steps)
    assert own.read().epsilon(1e-5, second) == pytest.approx(direct.get_epsilon(1e-5), rel=1e-6)


def test_runs_of_different_noise_compose(own: Ledger) -> None:
    """Against the definition: mu is the root of the sum of squares, and delta(epsilon) is what remains."""
    first, second = PrivacyConfig(epsilon=1.0), PrivacyConfig(epsilon=3.0, clipping_norm=2.0)
    for run, privacy, rounds in (("a", first, 5), ("b", second, 3)):
        for _ in range(rounds):
            charge(own, run, privacy.mu_squared)
    mu = math.sqrt(5 * (2 * 1.0 / first.noise) ** 2 + 3 * (2 * 2.0 / second.noise) ** 2)
    epsilon = own.read().epsilon(1e-5)
    delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-5, rel=1e-6)


def test_a_day_counts_rounds_with_and_without_noise(own: Ledger) -> None:
    for hours in (0, 1, 20):
        charge(replace(own, clock=lambda hours=hours: 3600.0 * hours), "run", 0.0)
    book = own.read()
    assert book.runs == {}
    assert [book.rounds_of_day(3600.0 * hour) for hour in (21, 24, 25, 45)] == [3, 2, 1, 0]
    charge(replace(own, clock=lambda: 3 * DAY), "run", 0.0)
    assert own.read().trained == (3 * DAY,)  # earlier ones are of no use any more


# --- the file -------------------------------------------------------------------------------------------


def test_it_is_the_owners_alone_and_belongs_to_the_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(state_folder.STATE_DIR, str(tmp_path / "state"))
    images = tmp_path / "images"
    images.mkdir()
    (tmp_path / "other-name").symlink_to(images)
    before = os.umask(0)
    try:
        charge(ledger.of_images(images), "run")
    finally:
        os.umask(before)
    (written,) = (tmp_path / "state" / "ledgers").glob("*.json")
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert stat.S_IMODE(written.parent.stat().st_mode) == 0o700
    assert ledger.of_images(tmp_path / "other-name").read().mu_squared == 1.0  # a folder has one ledger
    assert ledger.of_images(tmp_path).read().mu_squared == 0.0
    assert [each.read().images for each in ledger.all_ledgers()] == [str(images)]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"runs": {"a": {"rounds": -1}}}', '{"strange": 1}'])
def test_a_damaged_ledger_is_not_begun_anew(content: str, own: Ledger) -> None:
    charge(own, "run")
    own.path.write_text(content)
    for call in (own.read, lambda: charge(own, "run")):
        assert "cannot read the ledger" in refusal_of(FedShiftError, call)
    assert own.path.read_text() == content


def test_a_disk_that_fails_lets_nothing_out_and_keeps_what_was_spent(
    own: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    charge(own, "run")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_io.os, "fsync", full)
    message = refusal_of(FedShiftError, charge, own, "run")
    assert "No space left on device; nothing leaves this node" in message
    monkeypatch.undo()
    assert own.read().mu_squared == 1.0


# --- restarts, kills, neighbours ------------------------------------------------------------------------

NODE = """
import sys
from pathlib import Path
from fedshift_app.node.ledger import Ledger
own = Ledger(Path(sys.argv[1]), "/images")
print("ready", flush=True)
for number in range(int(sys.argv[2])):
    own.change(lambda book, now: book.charged(sys.argv[3], 1.0, now))
    print(number, flush=True)  # the update leaves
"""


def start(own: Ledger, rounds: int, run: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", NODE, str(own.path), str(rounds), run]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_a_killed_node_has_counted_whatever_left(own: Ledger) -> None:
    node = start(own, 10_000, "run")
    assert node.stdout is not None
    left = 0
    for line in node.stdout:
        left += line != "ready\n"
        if left == 25:
            node.send_signal(signal.SIGKILL)
            break
    left += len(node.stdout.read().splitlines())
    node.wait()
    counted = own.read().runs["run"].rounds
    assert left <= counted <= left + 1
    charge(own, "run")  # the node is started again: the lock went with its process
    assert own.read().runs["run"].rounds == counted + 1


def test_the_last_round_of_a_budget_leaves_once(own: Ledger) -> None:
    """Two nodes may both have been let in; only one of them is charged."""
    whys = [charge(own, "run", check=lambda book, now: "spent" if book.mu_squared >= 1 else "") for _ in range(2)]
    assert (whys, own.read().mu_squared) == (["", "spent"], 1)
