"""A site, or some of its patients, withdraw from a model: what is left has the bits of a run without them."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from real_federation import federation
from refusals import refused
from safetensors.numpy import load_file
from secure_sites import FOUR, Sites, real_nodes
from support import ROOT, Command, InlineRun, Run, ran
from traffic import changing, lost

from fedshift.export import withdrawing
from fedshift.run.launch import credentials
from fedshift.site import nodes, withdrawal
from fedshift_app.node import state_folder
from fedshift_core import atomic_io
from fedshift_core.arrays import Arrays
from fedshift_core.errors import ConfigError

FROZEN = "model.freeze=encoder"
ALIKE = "aggregation.weights=equal allocation.validation_fraction=0"
PATIENT = "federation.node_timeout=300 federation.secure_sums=on"
FEW = f"{FROZEN} allocation.share=0.1 evaluate.figures=false evaluate.site_figures=false"


def kept(folder: Path, stem: str) -> Arrays:
    return load_file(sorted((folder / "checkpoint").glob(f"{stem}-*.safetensors"))[-1])


def same(first: Path, second: Path) -> None:
    """Assert that two runs have the same model and the same sums, to the bit."""
    for stem in ("weights", "state"):
        arrays, expected = kept(first, stem), kept(second, stem)
        assert arrays.keys() == expected.keys()
        assert [name for name in arrays if arrays[name].tobytes() != expected[name].tobytes()] == []


# --- sums that the run kept ------------------------------------------------------------------------------


def test_a_node_withdraws_and_nothing_of_it_is_left(run_inline: InlineRun, fedshift: Command, tmp_path: Path) -> None:
    run = run_inline(f"method=fed3r rounds=1 {FEW}")
    never = run_inline(f"method=fed3r rounds=1 {FEW}", grid=changing(lost, "train", [1]))
    before, text = run.folder, json.dumps(sorted(str(path) for path in run.folder.rglob("*")))
    dry = fedshift("withdraw", run.folder, "node=texture", "--dry-run")
    assert dry.code == 0 and "node 1 (texture)" in dry.out and "nodes" in dry.out
    assert json.dumps(sorted(str(path) for path in run.folder.rglob("*"))) == text
    credentials.make_authority(tmp_path / "keys")
    certificate, key = sorted(credentials.make_server(tmp_path / "keys", ["localhost"]))
    assert fedshift("withdraw", run.folder, "node=1", f"sign={key}").code == 0
    same(before, never.folder)
    assert [path.name for path in sorted((before / "nodes").iterdir())] == [f"0000{i}.safetensors" for i in (0, 2, 3)]
    assert [node["index"] for node in run.results["nodes"]] == [0, 2, 3]
    assert all(b"texture" not in path.read_bytes() for path in before.glob("*.jsonl") if path.name != "metrics.jsonl")
    assert run.rounds[0]["nodes"] == [0, 2, 3] and {*run.rounds[0]["accuracy"].values()} == {None}
    receipt = json.loads((before / "withdrawal-1.json").read_text())
    assert (receipt["node"], receipt["images"]) == (1, 36)
    assert receipt["weights_sha256"]["after"] == run.results["weights_sha256"]
    for command in (
        f"openssl x509 -in {certificate} -pubkey -noout -out {tmp_path}/server.pem",
        f"openssl dgst -sha384 -verify {tmp_path}/server.pem -signature {before}/withdrawal-1.sig "
        f"{before}/withdrawal-1.json",
    ):
        subprocess.run(command.split(), check=True, capture_output=True)
    scored = fedshift("rescore", before, f"output-dir={tmp_path / 'scored'}")
    assert scored.code == 0, scored.err
    (again,) = map(Run, (tmp_path / "scored").iterdir())
    assert again.results["final"] == never.results["final"]
    assert fedshift("withdraw", before, "node=0").code == 0  # a second one, of a run that nobody has scored
    assert sorted(path.name for path in before.glob("withdrawal*")) == [
        "withdrawal-1.json", "withdrawal-1.sig", "withdrawal-2.json"
    ]  # fmt: skip
    assert kept(before, "state")["nodes"].tolist() == [2, 3]


def test_what_cannot_withdraw_is_refused_and_nothing_changes(run_inline: InlineRun, tmp_path: Path) -> None:
    run = run_inline(f"method=fed3r rounds=1 {FEW}")
    trained = run_inline(f"method=fedavg rounds=1 {FEW}")
    averaged = run_inline(f"method=fedcgs rounds=1 {FEW}")
    changed = averaged.folder / "checkpoint" / "state-00001.safetensors"
    for folder, words, named in (
        (run, ["node=9"], ("9", "0 (scan)")),
        (run, ["node=2", "rounds=3"], ("rounds=3", "node=NAME")),
        (run, ["sums=a"], ("node is missing",)),
        (run, ["node=2", "sums=a"], ("key is missing",)),
        (run, ["node=2", "method.ridge=0.1"], ("method.ridge=0.1", "0.3")),
        (run, ["node=2", "sign=nowhere"], ("nowhere",)),
        (trained, ["node=2"], ("fedavg", "fedshift run", "nodes=3", "{scan: 1,texture: 1,sketch: 1}")),
    ):  # fmt: skip
        with refused(ConfigError, *named):
            withdrawing.withdraw(str(folder.folder), words, dry=False)
    (run.folder / "nodes" / "00002.safetensors").unlink()
    with refused(ConfigError, "node 2 (street)", "fedshift site withdraw"):
        withdrawing.withdraw(str(run.folder), ["node=2"], dry=False)
    (tmp_path / "sums").mkdir()
    lie = averaged.folder / "nodes" / "00000.safetensors"
    sums = load_file(lie)
    atomic_io.write_durably(lie, atomic_io.pack(sums | {"gram": 3 * sums["gram"]}))
    with refused(ConfigError, "gram", "counts"):
        withdrawing.withdraw(str(averaged.folder), ["node=0"], dry=False)
    assert changed.is_file()


# --- sums of the site ------------------------------------------------------------------------------------


class Federated:
    """A run of four real nodes with secure sums, and the files that their owners make."""

    def __init__(
        self, folder: Path, run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch, held: Any = None
    ) -> None:  # fmt: skip
        real_nodes(monkeypatch, folder)
        self.patch = monkeypatch
        self.home, self.sites = folder, Sites(folder, run_inline, FOUR, held, number=60)
        for place, site in enumerate(FOUR):
            images = folder / "images" / site
            names = sorted(path.relative_to(images) for path in images.rglob("*.*"))
            table = [f"{name},p{int(name.stem) // 6}" for name in names]
            (images / "patients.csv").write_text("\n".join(["file,patient", *table]))
            own = {"domain": site, "data-dir": str(images), "partition-id": place}
            nodes.note_start(own | {"policy": str(folder / "policy.yaml")})

    def run(self, *sites: str, state: str = "state") -> Path:
        """Run; nodes refuse a second sum of the same weights over others in the same state folder."""
        self.patch.setenv(state_folder.STATE_DIR, str(self.home / state))
        run = self.sites.run(1, sites=sites, method="fed3r", more=f"{FROZEN} {ALIKE}")
        self.patch.setenv(state_folder.STATE_DIR, str(self.home / "state"))
        return run.folder

    def key(self, site: str, suffix: str = "pub") -> Path:
        return self.home / "keys" / f"{site}.{suffix}"

    def withdraws(self, site: str, model: Path, patients: str = "") -> Path:
        """Return the file that a site's owner makes."""
        listed = self.home / "list.txt"
        listed.write_text(patients)
        output = self.home / f"{site}{len(patients)}.withdrawal"
        withdrawal.withdraw(
            f"node-{FOUR.index(site)}",
            model=model,
            key=self.key(site, "key"),
            patients=listed if patients else None,
            output=output,
        )
        return output


def test_a_site_withdraws_from_a_secure_sum(
    run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fedshift: Command
) -> None:
    made = Federated(tmp_path, run_inline, monkeypatch)
    never, run = made.run("north", "south", "west", state="other"), made.run()
    assert not (run / "nodes").exists() and fedshift("save", run).code == 0
    east, north = (made.withdraws(site, run / "model") for site in ("east", "north"))
    lie = tmp_path / "lie.withdrawal"
    lie.write_bytes(atomic_io.pack((arrays := load_file(east)) | {"gram": arrays["gram"] * 2}))
    pub = {site: f"key={made.key(site)}" for site in FOUR}
    for words, named in (
        (["node=east"], ("node 3 (east)", "fedshift site withdraw")),
        (["node=east", f"sums={east}", pub["north"]], ("east0.withdrawal", "north.pub")),
        (["node=east", f"sums={lie}", pub["east"]], ("lie.withdrawal", "not signed", "east.pub")),
        (["node=east", f"sums={made.key('east')}", pub["east"]], ("east.pub", "fedshift site withdraw")),
        (["node=east", f"sums={north}", pub["north"]], ("north0.withdrawal", "domain", "east")),
        (["node=east", f"sums={east}", f"key={east}"], ("public key",)),
    ):  # fmt: skip
        with refused(ConfigError, *named):
            withdrawing.withdraw(str(run), words, dry=False)
    done = fedshift("withdraw", run, "node=east", f"sums={east}", pub["east"])
    assert done.code == 0 and "signed by SHA256:" in done.out, done.err
    same(run, never)
    assert not east.exists()
    with refused(ConfigError, "2 nodes would be left", "least is 3", "flwr run"):
        withdrawing.withdraw(str(run), ["node=north", f"sums={north}", pub["north"]], dry=False)


def test_a_site_withdraws_with_a_class_that_was_in_no_sum(
    run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fedshift: Command
) -> None:
    two = ("bar", "cross")
    made = Federated(tmp_path, run_inline, monkeypatch, {"north": two, "south": two})
    table = made.home / "images" / "east" / "patients.csv"
    table.write_text(re.sub("(disc/.*),p", r"\1,disc", table.read_text()))  # others than those of further classes
    never, run = made.run("north", "south", "west", state="other"), made.run()
    assert fedshift("save", run).code == 0
    words = ["node=east", f"sums={made.withdraws('east', run / 'model')}", f"key={made.key('east')}"]
    with refused(ConfigError, "--model", "none of these images"):
        made.withdraws("east", run / "model", "disc1")
    withdrawing.withdraw(str(run), words, dry=False)
    same(run, never)
    assert kept(run, "state")["counts"].all(where=[True, True, False]) and kept(run, "state")["counts"][2] == 0


def test_patients_withdraw_from_a_secure_sum(
    run_inline: InlineRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fedshift: Command
) -> None:
    made = Federated(tmp_path, run_inline, monkeypatch)
    run = made.run()  # the site west says which images are to train on
    assert fedshift("save", run).code == 0
    with refused(ConfigError, "nobody"):
        made.withdraws("west", run / "model", "nobody\n")
    trained = [name for name in (f"p{i}" for i in range(10)) if _trains(made, run, name)]
    with refused(ConfigError, "least_images=5", "more patients"):
        made.withdraws("west", run / "model", trained[0])
    file = made.withdraws("west", run / "model", "\n".join(trained[:4]))
    gone, before = load_file(file), kept(run, "state")
    theirs = [each for each in made.home.glob("images/west/train/*/*") if f"p{int(each.stem) // 6}" in trained[:4]]
    assert gone["counts"].sum() == len(theirs)
    words = ["node=west", f"sums={file}", f"key={made.key('west')}"]
    assert "4 patients of node 2 (west)" in withdrawing.withdraw(str(run), words, dry=False)
    for name in ("counts", "gram", "cross"):
        assert np.array_equal(kept(run, "state")[name], before[name] - gone[name])
    counts = Run(run).results["nodes"][2]["class_counts"]
    for image in theirs:
        image.unlink()
    left = made.run(state="other")
    assert Run(left).results["nodes"][2]["class_counts"] == counts
    for name, array in kept(left, "weights").items():
        np.testing.assert_allclose(kept(run, "weights")[name], array, rtol=0, atol=1e-9)


def _trains(made: Federated, run: Path, patient: str) -> bool:
    """Tell whether a patient has training images, which the list of patients must name."""
    try:
        made.withdraws("west", run / "model", patient)
    except ConfigError as error:
        return "least_images" in str(error)
    return True


@pytest.mark.slow
@pytest.mark.long
def test_of_four_supernodes_with_secure_sums_one_withdraws(run_inline: InlineRun, tmp_path: Path) -> None:
    """Three are left: a sum over two would tell each of the other."""
    images = f"{FROZEN} allocation.share=0.3 train.precision=float32"
    with federation(tmp_path, nodes=4, images=images) as made:
        made.policy.write_text("least_images: 1\n")
        given = f"{images} dataset.domains=[scan,texture,street,sketch] federation.min_nodes=4 {PATIENT}"
        said = made.run(ROOT, method="fed3r", set=given)
        assert (tmp_path / "runs").is_dir(), said
        (run,) = (tmp_path / "runs").iterdir()
        folders = sorted((tmp_path / "nodes").iterdir())
        key = tmp_path / "keys" / f"{folders[0].name}.key"
        for words in (
            ["save", run], ["site", "withdraw", "node-0", "--model", run / "model", "--key", key, "-o", "file"],
            ["withdraw", run, "node=0", "sums=file", f"key={key.with_suffix('.pub')}"],
        ):  # fmt: skip
            ended = ran("-m", "fedshift", *words, cwd=tmp_path, env=made.own)
            assert ended.returncode == 0, f"{said}\n{ended.stderr}"
    never = run_inline(f"method=fed3r rounds=1 {images}", grid=changing(lost, "train", [0]))
    state, expected = kept(run, "state"), kept(never.folder, "state")
    assert state.pop("members").tolist() == expected.pop("nodes").tolist() == [1, 2, 3]
    assert {name: array.tobytes() for name, array in state.items()} == {
        name: array.tobytes() for name, array in expected.items()
    }
