"""`fedshift prepare` and `fedshift init` on a user's own images: the messages, and that they are right."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from own_sites import CLASSES, make
from support import refusal_of

from fedshift.data import init as init_files
from fedshift.data import prepare
from fedshift_app.config import resolving
from fedshift_core.errors import ConfigError, FedShiftError


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data-dir of three sites with 30 images each."""
    return make(tmp_path_factory.mktemp("own") / "images", number=30)


@pytest.fixture
def images(made: Path, tmp_path: Path) -> Path:
    """Return a copy of it that may be changed."""
    shutil.copytree(made, tmp_path / "images")
    return tmp_path / "images"


def report(capsys: pytest.CaptureFixture[str], name: str | Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    assert prepare.prepare(str(name), list(arguments), as_json=True) == code
    out = capsys.readouterr().out
    result: dict[str, Any] = json.loads(out[out.index("{\n") :])  # lines of the log may come before
    return result


def test_everything_that_is_there_is_reported(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(images / "west" / "test" / "bar")
    (images / "empty").mkdir()
    page = report(capsys, "folders", f"data-dir={images}", code=1)
    assert page["classes"] == list(CLASSES)
    for site, one in page["domains"].items():
        on_disk = sum(path.suffix in (".png", ".jpg", ".bmp") for path in (images / site).rglob("*.*"))
        assert sum(sum(split.values()) for split in one["images"].values()) == on_disk - (site == "north")
    assert page["empty"] == [["west", "test", "bar"]]
    (broken,) = page["broken"]
    assert broken["file"].endswith("north/disc/broken.png") and "truncated" in broken["reason"]
    reasons = {Path(one["file"]).name: one["reason"] for one in page["not_taken"]}
    assert reasons == {"notes.txt": "suffix .txt", "empty": "not the folder of a domain"}
    (across,) = [pair for pair in page["nearly_same"]["pairs"] if pair[0][0] != pair[1][0]]
    assert {Path(image[2]).name for image in across} == {"002.png", "copy.jpg"}
    assert page["nearly_same"]["across_domains"] == 1


# --- init --------------------------------------------------------------------------------------------


def test_init_writes_what_a_run_takes(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = init_files.init(str(tmp_path / "shapes"), [f"data-dir={images}"])
    assert path == tmp_path / "shapes" / "shapes.yaml"
    config = resolving.resolve({"experiment": str(path)})
    dataset, allocation = config.dataset, config.allocation
    assert (config.experiment, dataset.name, dataset.of, dataset.data_dir) == (
        "shapes",
        "shapes",
        "folders",
        str(images),
    )
    assert (dataset.domains, dataset.classes) == (("north", "south", "west"), CLASSES)
    assert (allocation.validation_fraction, allocation.counts) == (0.1, dict.fromkeys(dataset.domains, 1))
    said = capsys.readouterr().out
    assert all(f"fedshift {command} {path}" in said for command in ("prepare", "sweep", "deploy-demo"))
    assert report(capsys, path, "dataset.skip_broken=true")["domains"].keys() == {*dataset.domains}
    with pytest.raises(ConfigError, match="exists already"):
        init_files.init(str(tmp_path / "shapes"), [f"data-dir={images}"])


def test_trained_weights_are_proposed_where_this_machine_has_them(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    proposed = [init_files.propose([side], [100], pretrained=True).weights for side in (28, 127, 128)]
    assert [*map(bool, proposed)] == [False, False, True]
    monkeypatch.setattr(init_files, "_sides", lambda _: [300])
    for name, has, network, methods in (
        ("plain", False, "torchvision:resnet18", "fedavg,fedbn,fedproto,i2pfl"),
        ("trained", True, "package:efficientnet-lite0", "fedavg,fedproto,i2pfl,local"),
    ):
        monkeypatch.setattr(init_files, "has_weights", lambda has=has: has)
        assert network in init_files.init(str(tmp_path / name), [f"data-dir={images}"]).read_text()
        assert f"method={methods} " in capsys.readouterr().out
    config = resolving.resolve({"experiment": str(tmp_path / "plain" / "plain.yaml")})
    assert (config.model.name, config.model.freeze, config.images.flip) == ("torchvision:resnet18", "none", True)


@pytest.mark.parametrize(
    ("folder", "argument", "named"),
    [
        ("new", "", "data-dir"), ("new", "data_dir={}", "data-dir"), ("new", "method=i2pfl", "'method=i2pfl'"),
        ("-x", "", "'-x'"), ("new", "data-dir={}/none", "none does"), ("new", "data-dir={}/north/disc", "/disc"),
    ],
)  # fmt: skip
def test_init_refuses(folder: str, argument: str, named: str, made: Path, tmp_path: Path) -> None:
    given = [f"data-dir={made}"] * (folder == "-x" or "method" in argument) + [argument.format(made)] * bool(argument)
    assert named in refusal_of(FedShiftError, init_files.init, str(tmp_path / folder), given)
    assert not (tmp_path / folder).exists()
