"""The same run on every engine: Flower's simulation, SuperLink and SuperNodes, inline. Real processes."""

import contextlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import psutil
import pytest
from flwr.cli.build import build_fab_from_disk
from real_federation import opened
from support import ROOT, InlineRun, Run, until

from fedshift.run.launch import processes, runner
from fedshift_app.config.arguments import parse_arguments

FEDSHIFT = str(Path(sys.executable).parent / "fedshift")
LIMIT = 240
MARK = "FEDSHIFT_TEST_ENGINES"
#: Words in the command lines of what a run starts.
STARTED = (
    r"flower-super|launch\.super|launch\.fork_server|launch/forked|deploy/superexec|"
    r"deploy/fork_server|multiprocessing|flwr-|raylet|gcs_server|ray::"
)


def fedshift(*arguments: str, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command as a person would, in an empty folder."""
    return subprocess.run(
        [FEDSHIFT, *arguments], cwd=cwd, capture_output=True, text=True, timeout=LIMIT, check=False, **options
    )  # fmt: skip


def finished(ended: subprocess.CompletedProcess[str]) -> Run:
    """Return the run whose folder the last line names."""
    assert ended.returncode == 0, ended.stdout + ended.stderr
    last = ended.stdout.rstrip().splitlines()[-1]
    assert last.startswith("run folder: /"), ended.stdout
    return Run(Path(last.removeprefix("run folder: ")))


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Mark all that the test starts, in the environment, that sets it apart from others' processes."""
    monkeypatch.setenv(MARK, str(tmp_path))
    return str(tmp_path)


def left_behind(mark: str) -> bool:
    """Tell whether processes of Flower or Ray that the test has started stay."""

    def there() -> list[int]:
        result = []
        for process in psutil.process_iter(["pid", "cmdline"]):
            with contextlib.suppress(psutil.Error):
                words = " ".join(process.info["cmdline"] or [])
                if re.search(STARTED, words) and process.environ().get(MARK) == mark:
                    result.append(process.pid)
        return result

    return not until(lambda: not there(), 10)


FEW = "train.epochs=1 allocation.share=0.1 dataset.domains=[scan,sketch]"
#: A busy machine loses no node.
PATIENT = ("federation.min_nodes=2", "federation.node_timeout=900", "federation.round_timeout=900")
FROZEN = "model.freeze=encoder method.samples=20 method.least_images=2"
#: Those that all three engines are compared in.
WAYS = {
    "method=feddyn rounds=3 aggregation.weights=ga": "state on both sides",
    "method=fedsa rounds=2": "models on the nodes",
    "method=fedmd rounds=2 method.public_epochs=1 method.first_epochs=1 dataset.public=0.02": "a public set",
    "model.name=cnn_bn evaluate.bn=[averaged,retaken,own,batch] model.bn_keep=retaken": "BatchNorm",
}
#: What is said between server and nodes, or kept on either side, in each way that there is but for those of ``WAYS``.
RUNS = {
    "method=fedcode rounds=2": "private parts",
    "method=scaffold rounds=2": "as much again as the weights",
    "method=fedrep rounds=2": "two phases",
    "method=fedmlp rounds=2": "an approximation",
    "method=fedpac rounds=2": "a head for each node",
    "method=fedala rounds=3": "its own past model",
    "method=copa rounds=2": "a head for each domain",
    "method=feddap rounds=2": "prototypes by domain",
    "method=fdse rounds=2": "arrays for each node",
    "method=fedheal rounds=2": "server state",
    "method=fedsr rounds=2": "drawn features",
    # With nothing drawn from the system's entropy: a deployment refuses method.repeatable_noise.
    "method=fedpall rounds=3 method.mix_from=1 method.kept=1": "networks of the server",
    "method=fedomg rounds=2": "gradients matched",
    "method=fediir rounds=3": "gradients of the head",
    "method=stablefdg rounds=2": "styles of maps from node to node",
    "method=fedccrl rounds=2": "styles of images",
    "method=fedrdn rounds=2 aggregation.gma_tau=0.4": "statistics sent once, and masks",
    "method=fedfa rounds=3": "variances of maps",
    "method=gperxan rounds=2": "mixed norms",
    "method=afl rounds=3 modules=[mixstyle]": "losses of domains, and mixed styles",
    "method=eata rounds=2": "adapted before a score",
    "method=tent rounds=1": "entropy",
    "method=t3a rounds=1": "adjusted classifier",
    "method=fedplvm method.lambda_proto=1 rounds=2": "ragged prototypes",
    "method=fedrcl rounds=1": "levels of the network",
    "method=fedtgp rounds=2 method.share_weights=true": "prototypes trained on the server",
    "method=fedsa rounds=3 method.share_weights=true": "anchors and a node's own gap",
    "method=fedtgp rounds=2": "the same, models on the nodes",
    "method=fedgh rounds=2": "a head trained on the server",
    f"method=ggeur rounds=3 {FROZEN}": "statistics sent once",
    "method=fedthe rounds=2": "two heads by turns of the test set",
    "method=fed3r model.freeze=encoder": "sums of features",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Open two real nodes, to which one run after the other goes."""
    with opened(tmp_path_factory.mktemp("engines") / "site", 2, FEW) as nodes:
        yield nodes


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("typed", RUNS, ids=RUNS.values())
def test_real_nodes_have_the_numbers_of_one_process(
    typed: str, site: Any, tmp_path: Path, run_inline: InlineRun
) -> None:
    flat, _ = parse_arguments(["rounds=1", *FEW.split(), *PATIENT, *typed.split()])
    inline = run_inline(nodes=2, **flat)
    real = Run(runner.submit(site.flower, site.home, flat | {"output-dir": str(tmp_path / "real")}, []))
    assert [run.results["engine"] for run in (inline, real)] == ["inline", "deployment"]
    assert real.results["weights_sha256"] == inline.results["weights_sha256"]
    assert real.timeless == inline.timeless


def in_three_engines(nodes: int, folder: Path, *words: str) -> list[list[dict[str, Any]]]:
    """Return a run's rounds in each engine, of equal weights."""
    run = ("run", "handwritten", f"nodes={nodes}", "report=false")
    commands = {"inline": (*run, "engine=inline"), "simulation": run, "deployment": ("deploy-demo",)}
    runs = {name: finished(fedshift(*command, *words, cwd=folder)) for name, command in commands.items()}
    assert [run.results["engine"] for run in runs.values()] == [*runs]
    assert len({run.results["weights_sha256"] for run in runs.values()}) == 1
    return [run.timeless for run in runs.values()]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("typed", WAYS, ids=WAYS.values())
def test_three_engines_agree_bit_for_bit(typed: str, mark: str, tmp_path: Path) -> None:
    words = ["rounds=1", *FEW.split(), *typed.split()]
    inline, *others = in_three_engines(2, tmp_path, *words)
    assert all(other == inline for other in others)
    assert not left_behind(mark)


@pytest.mark.slow
def test_a_deployment_has_the_numbers_of_a_run_in_one_process(mark: str, tmp_path: Path, run_inline: InlineRun) -> None:
    """Simulation against the same run: ``tests/fedshift_app/flower``; all three with private parts: the test above."""
    requested = "dataset.domains=[scan,sketch] train.epochs=1 allocation.share=0.1"
    inline = run_inline(f"method=i2pfl nodes=2 rounds=1 {requested}")
    deployment = finished(fedshift("deploy-demo", "method=i2pfl", "rounds=1", f"set={requested}", cwd=tmp_path))
    assert deployment.results["engine"] == "deployment"
    assert deployment.results["weights_sha256"] == inline.results["weights_sha256"]
    assert deployment.timeless == inline.timeless
    assert not left_behind(mark)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_masks_of_secure_sums_cancel_in_three_engines(method: str, mark: str, tmp_path: Path) -> None:
    """A SuperNode starts a process for each message: what its stages share is in Flower's ``context.state`` alone."""
    more = ["federation.secure_sums=on", "dataset.domains=[scan,texture,sketch]", "train.epochs=1", "rounds=2"]
    inline, simulation, deployment = in_three_engines(3, tmp_path, *more, f"method={method}")
    sizes = [
        [[line["secure_sums"].pop(key) for key in ("bytes_up", "bytes_down")] for line in of_run]
        for of_run in (inline, simulation, deployment)
    ]
    assert inline == simulation == deployment
    assert sizes[0] == sizes[1] < sizes[2]  # real nodes sign
    assert [line["secure_sums"]["nodes"] for line in deployment] == [3, 3]
    assert not left_behind(mark)


@pytest.mark.slow
@pytest.mark.long
def test_plain_flwr_run_is_the_same_run(tmp_path: Path, run_inline: InlineRun) -> None:
    """With Flower's own two cores a client, which give two threads to what goes by the machine."""
    env = os.environ | {
        "FLWR_HOME": str(tmp_path / "home"),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(processes.free_port()),
        "FLWR_LOCAL_CONTROL_API_PORT": str(processes.free_port()),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    env.pop("OMP_NUM_THREADS", None)
    (tmp_path / "home").mkdir()
    with processes.Group(tmp_path, env) as flower:

        def run(result: str) -> str:
            ended = subprocess.run(
                [processes.command("flwr"), "run", str(ROOT), "--stream", "--run-config", result],
                cwd=tmp_path, env=flower.env, capture_output=True, text=True, timeout=LIMIT, check=False,
            )  # fmt: skip
            return ended.stdout + ended.stderr

        refused = run(f'rounds=2 output-dir="{tmp_path / "plain"}" set="train.epochs=1"')
        assert not (tmp_path / "plain").exists(), refused
        output = run(f'rounds=2 output-dir="{tmp_path / "plain"}" set="dataset.domains=[scan,sketch] train.epochs=1"')
    result = '\n--federation-config "num-supernodes=8 client-resources-num-cpus=1"'
    assert result in refused and "Traceback" not in refused, refused
    ending = r"to end it: kill \d+ \d+"
    assert re.search(ending, refused) and re.search(ending, output)
    result = output[output.index("handwritten wants 4 nodes") :]
    assert "\x1b" not in result[: result.index("run folder: ")]  # what the app's process prints has no colours
    (folder,) = (tmp_path / "plain").iterdir()
    assert f"run folder: {folder}" in output
    plain = Run(folder)
    same = run_inline("nodes=2 rounds=2 dataset.domains=[scan,sketch] train.epochs=1")
    assert plain.results["engine"] == "simulation"
    assert plain.results["weights_sha256"] == same.results["weights_sha256"]
    assert plain.timeless == same.timeless


def test_the_bundle_holds_the_app_and_nothing_else() -> None:
    bundle = build_fab_from_disk(ROOT)
    assert len(bundle) < 3_200_000  # code alone, not compressed; Flower Hub takes 10 MB
    names = zipfile.ZipFile(BytesIO(bundle)).namelist()
    code = {"fedshift_app", "strategies", "clients", "datasets", "fedshift_core"}
    tops = {name.split("/")[0] for name in names} - {"pyproject.toml", ".info"}
    assert tops == {*code, "conf", "README.md", "LICENSE"}
    assert {Path(name).suffix for name in names} <= {".py", ".yaml", ".md", ".toml", ""}
    assert not any(part.startswith("test") for name in names for part in Path(name).parts)
    # Flower leaves out files called test_*.
    files = {str(path.relative_to(ROOT)) for top in code for path in (ROOT / top).rglob("*.py")}
    assert {"conf/experiments/handwritten.yaml", *files} <= {*names}
