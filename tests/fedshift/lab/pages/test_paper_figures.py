"""The scripts of examples/figures draw what they say of a run, and refuse in a line what they cannot draw."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support import ROOT, InlineRun, Run
from torch.nn import functional as F

import fedshift as fs

SCRIPTS = ROOT / "examples" / "figures"
QUICK = "train.epochs=1 allocation.share=0.05"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module


@pytest.fixture(scope="session")
def f2dc(shared_run: InlineRun) -> Run:
    return shared_run(method="f2dc", rounds=2, set=QUICK)


@pytest.mark.parametrize(("name", "more"), [("features", []), ("grad_cam", ["--node", "1"]), ("prototypes", [])])
def test_each_script_draws(name: str, more: list[str], f2dc: Run, script: Any, tmp_path: Path) -> None:
    file = tmp_path / "figure.png"
    assert script(name).main([str(f2dc.folder), *more, "--output", str(file)]) == file
    with Image.open(file) as drawn:
        assert len(drawn.convert("RGB").getcolors(1 << 20) or []) > 30


def test_a_mistake_is_a_line(f2dc: Run, script: Any) -> None:
    with pytest.raises(SystemExit, match=r"^error: .*nodes 0 to 3, found 9"):
        script("opened").show(lambda: script("features").main([str(f2dc.folder), "--node", "9"]))


def test_grad_cam_of_f2dc_by_differences(f2dc: Run, script: Any) -> None:
    """The weights of all four maps are differences of the class's score by the channels of f~."""
    opened, grad_cam = script("opened"), script("grad_cam")
    scorer = opened.model_of(fs.load(f2dc.folder)).double()
    insertion, moved, seen = list(scorer.model.decoupling.values())[-1], torch.zeros(()), []

    def move(_: Any, __: Any, maps: Any) -> Any:
        seen.append(maps)
        return type(maps)(maps.f, maps.plus, maps.correction + moved)

    highest = []
    for images, y in opened.test_images(fs.load(f2dc.folder), 1).values():
        image, k, moved, weights, step = images.double(), int(y[0]), torch.zeros(()), [], 0.001
        handle = insertion.register_forward_hook(move)
        with torch.no_grad():
            base, maps = scorer(image)[0, k], seen[-1]
            for c in range(maps.f.shape[1]):
                moved = torch.zeros_like(maps.f)
                moved[0, c] = step
                weights.append(float(scorer(image)[0, k] - base) / step / maps.f[0, c].numel())
        handle.remove()
        parts = (maps.fused, maps.plus, maps.minus, maps.star)
        wanted = [np.tensordot(weights, part[0].numpy(), 1).clip(0) for part in parts]
        highest.append(max(map(np.max, wanted)))
        for heat, raw in zip(grad_cam.heats(scorer, image, k), wanted, strict=True):
            wide = F.interpolate(torch.from_numpy(raw)[None, None], size=(32, 32), mode="bilinear")[0, 0]
            assert heat == pytest.approx(wide.numpy(), abs=0.03 * highest[-1])
    assert len(highest) == 4 and max(highest) > 0


def test_variance_and_effective_rank_by_hand(script: Any) -> None:
    features, prototypes = script("features"), script("prototypes")
    assert features.effective_rank(np.ones(7)) == pytest.approx(7)
    assert features.effective_rank(np.zeros(3)) == 0
    rows = np.random.default_rng(0).normal(size=(9, 4))
    wanted = np.linalg.svd(np.cov(rows, rowvar=False), compute_uv=False)
    assert features.singular_values(rows) == pytest.approx(wanted)
    unit = np.array([[[1.0, 0.0], [-1.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [np.nan, np.nan]]])
    assert prototypes.variance(unit).tolist()[:2] == [1, 0] and np.isnan(prototypes.variance(unit)[2])
