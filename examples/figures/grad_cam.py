"""Draws Grad-CAM of the same test images for each of several runs (F2DC, figure 2; Selvaraju et al., ICCV 2017).

    python examples/figures/grad_cam.py RUN [RUN ...] [--node K] [--output grad_cam.png]

Of three classes an image of each domain, the same for all runs, and in red what speaks for its class, each map on its
own scale. A run
with F2DC's modules has four maps, with the gradients of f~ = f+ + f*, so that f+ and f* add up to f~; the number is the
highest value in parts of f~'s. With --node: that node's model right after one more local round, as in the paper.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from opened import classes_of, model_of, show, test_images
from torch import Tensor
from torch.nn import functional as F

import fedshift as fs
from fedshift.export.scorer import Scorer
from fedshift_clients.modules.f2dc import F2DCModel, Maps

CLASSES, MOST = 3, 2000
LAST, F2DC = ("Grad-CAM",), ("f~ fused", "f+ robust", "f- related", "f* corrected")


def heats(scorer: Scorer, image: Tensor, k: int) -> list[NDArray[np.float32]]:
    """Return Grad-CAM of class ``k`` of an image (1, 3, H, W): of the last map, or of F2DC's four; (H, W) each."""
    seen: list[Maps | Tensor] = []
    hooks = [part.register_forward_hook(lambda _, __, out: seen.append(out)) for part in scorer.model.modules()]
    score = scorer(image.clone().requires_grad_())[0, k]  # so that gradients flow where a method froze the weights
    for hook in hooks:
        hook.remove()
    if isinstance(scorer.model, F2DCModel):
        split = [out for out in seen if isinstance(out, Maps)][-1]
        at = split.f if split.correction is None else split.correction  # its gradient is that of f~
        maps = [split.fused, split.plus, split.minus, split.star]
    else:
        found = [out for out in seen if isinstance(out, Tensor) and out.ndim == 4 and out.shape[-1] > 1]
        if not found:
            raise fs.ConfigError("the network has no map of several places to look at")
        at, maps = found[-1], found[-1:]
    weights = torch.autograd.grad(score, at)[0].mean(dim=(2, 3), keepdim=True)
    heat = torch.cat([(weights * part).sum(dim=1, keepdim=True).relu().detach() for part in maps])
    return list(F.interpolate(heat, size=image.shape[2:], mode="bilinear")[:, 0].numpy())


def main(arguments: list[str] | None = None) -> Path:
    """Draw the figure and return its file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=fs.load, metavar="RUN")
    parser.add_argument("--node", type=int)
    parser.add_argument("--output", type=Path, default=Path("grad_cam.png"))
    given = parser.parse_args(arguments)
    tests = test_images(given.runs[0], MOST)
    common = sorted(set.intersection(*(set(y.tolist()) for _, y in tests.values())))[:CLASSES]
    chosen = [(k, domain, x[np.flatnonzero(y == k)[:1]]) for k in common for domain, (x, y) in tests.items()]
    names = classes_of(given.runs[0])
    first = [(image, None, f"{names[k]}, {domain}") for k, domain, image in chosen]
    rows: list[tuple[str, list[tuple[Tensor, NDArray[np.float32] | None, str]]]] = [("image", [*first])]
    for run in given.runs:
        scorer = model_of(run, node=given.node)
        each = [heats(scorer, image, k) for k, _, image in chosen]
        taken = [int(scorer(image).argmax()) for _, _, image in chosen]
        for place, head in enumerate(F2DC if len(each[0]) > 1 else LAST):
            said = [
                (f"{maps[place].max() / max(maps[0].max(), 1e-9):.2f} " if len(maps) > 1 else "")
                + (f"as {names[predicted]}" if place == 0 and predicted != k else "")
                for maps, predicted, (k, _, _) in zip(each, taken, chosen, strict=True)
            ]
            pictures = [image for _, _, image in chosen]
            cells = zip(pictures, [maps[place] for maps in each], said, strict=True)
            rows.append((f"{run.name}\n{head}", list(cells)))
    figure = Figure(figsize=(0.8 * len(chosen) + 0.6, 0.95 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), len(chosen), squeeze=False)
    for line, (name, row) in zip(axes, rows, strict=True):
        line[0].set_ylabel(name, fontsize=7)
        for place, (image, heat, said) in zip(line, row, strict=True):
            place.imshow(image[0].permute(1, 2, 0).numpy())
            if heat is not None:
                place.imshow(heat / max(heat.max(), 1e-9), cmap="jet", alpha=0.5, vmin=0, vmax=1)
            place.set_title(said, fontsize=6)
            place.set_xticks([])
            place.set_yticks([])
    figure.savefig(given.output, dpi=100)
    return Path(given.output)


if __name__ == "__main__":
    show(main)
