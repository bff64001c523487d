"""Reads images of one domain and split in the two plain layouts, and writes npz files.

| layout | place | content |
|---|---|---|
| npz | `<data_dir>/<domain>_<split>.npz` | `x` uint8 (N, H, W), (N, H, W, 1) or (N, H, W, 3); `y` (N,), see `npz.py` |
| image folder | `<data_dir>/<domain>/<split>/<class>/*` | image files of any size (:mod:`.pictures`) |

If both exist, the npz is read. Images of any height and width become RGB squares.
"""

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fedshift_core import private_files, same_names
from fedshift_core.errors import DataError
from fedshift_core.limits import shown
from fedshift_core.plural import plural
from fedshift_datasets.arrays import Numbers, Pixels
from fedshift_datasets.base import ImageSet, Resize, Split, checked
from fedshift_datasets.io import layout, npz, presence
from fedshift_datasets.io import masks as masks_of
from fedshift_datasets.io.reading import brief as brief
from fedshift_datasets.io.reading import check_room as check_room
from fedshift_datasets.io.reading import listed as listed
from fedshift_datasets.io.reading import reading as reading
from fedshift_datasets.io.resize import fit, scale
from fedshift_datasets.listing import IGNORED, main_class

_CHUNK = 1 << 24  # input or output values of one resize call


def check_data_dir(data_dir: Path) -> None:
    """Raise a :class:`DataError` unless ``data_dir`` is a folder."""
    if why := presence.reason(data_dir):
        raise DataError(f"data-dir {shown(data_dir.absolute())}: cannot be read ({why}); it must be a folder")
    if not data_dir.exists():
        raise DataError(f"data-dir {shown(data_dir.absolute())} does not exist; it must be a folder with images")
    if not data_dir.is_dir():
        raise DataError(f"data-dir {shown(data_dir.absolute())} is a file; it must be a folder with images")


def domains_in(data_dir: Path, split: Split) -> list[str]:
    """Return the sorted names of all domains that ``data_dir`` has in a plain layout."""
    with reading(data_dir.absolute()):
        packed = {name for name, named in layout.all_archives(data_dir).values() if named == split}
        folders = {folder.name for folder in layout.folders_in(data_dir) if split in layout.split_folders(folder)}
    return sorted(packed | folders)


def absent(data_dir: Path, domain: str, split: Split) -> DataError:
    """Return the error that names the missing files in ``data_dir``, and the domains there."""
    domains = listed(domains_in(data_dir, split)) or "none"
    return DataError(
        f"{domain} {split} not found in {shown(data_dir.absolute())}: "
        f"neither {domain}_{split}.npz nor {domain}/{split}/<class>/\n"
        f"Domains with a {split} split there: {domains}"
    )


def read_npz(path: Path, *, classes: tuple[str, ...], stated: bool = True, masks: bool = False) -> ImageSet:
    """Read the images of an npz file with the keys ``x``, ``y`` and optionally ``classes``; other keys are ignored.

    Args:
        path: The file.
        classes: The classes of the run.
        stated: Somebody stated the order of ``classes``, see :mod:`fedshift_datasets.io.npz`.
        masks: It must have ``masks`` too.

    Returns:
        Images of shape (N, H, W, 3), in the file's order.

    Raises:
        DataError: If the file is broken or ``x`` and ``y`` are not images and labels.
    """
    arrays = npz.load(path, ("x", "y", *([npz.MASKS, npz.SPACING] if masks else [])))
    where, own = str(path.absolute()), arrays.get(npz.KEY)
    y = npz.of_run(arrays["y"], own, where=where, classes=classes, stated=stated)
    images = as_images(arrays["x"], y, where=where, classes=classes)
    if not masks:
        return images
    if npz.MASKS not in arrays:
        raise DataError(f"{shown(where)}: no key {npz.MASKS}; with task=segmentation it must have x, y and {npz.MASKS}")
    outlines = masks_of.of_run(arrays[npz.MASKS], own, where=where, classes=classes)
    spacing = npz.spacing(arrays.get(npz.SPACING), len(images), where)
    whole = ImageSet(images.x, main_class(outlines, IGNORED), masks=outlines, spacing=spacing)
    return checked(whole, classes=len(classes), size=None, where=where)


def as_images(x: Numbers, y: Numbers, *, where: str, classes: tuple[str, ...]) -> ImageSet:
    """Check raw arrays and turn them into an :class:`ImageSet`.

    Args:
        x: Images, uint8, shape (N, H, W), (N, H, W, 1) or (N, H, W, 3).
        y: Labels, any integer type, shape (N,).
        where: The file they came from, for the messages.
        classes: Class names.

    Returns:
        Images of shape (N, H, W, 3).

    Raises:
        DataError: If a type, a shape or a label is not allowed, or there are no images.
    """
    where = shown(where)
    images = x.ndim == 3 or (x.ndim == 4 and x.shape[3] in (1, 3))
    if x.dtype != np.uint8 or not images or 0 in x.shape[1:]:
        raise DataError(
            f"{where}: x has {npz.described(x)}; allowed are uint8 and (N, H, W), (N, H, W, 1) or (N, H, W, 3)"
        )
    npz.check_integers(y, where)
    if len(x) != len(y):
        raise DataError(
            f"{where}: {plural(len(x), 'image')} (x) but {plural(len(y), 'label')} (y); the numbers must be equal"
        )
    return checked(ImageSet(_rgb(x), y.astype(np.int64)), classes=len(classes), size=None, where=where)


def _rgb(x: Pixels) -> Pixels:
    """Return images as (N, H, W, 3); grey ones as a read-only view."""
    x = x[..., np.newaxis] if x.ndim == 3 else x
    return np.broadcast_to(x, (*x.shape[:3], 3))


def class_folders(
    folder: Path,
    classes: tuple[str, ...],
    *,
    aliases: Mapping[str, str] | None = None,
    others: Collection[str] = (),
) -> list[tuple[int, Path]]:
    """Return the class folders in ``folder`` with their labels, in the order of the labels.

    Args:
        folder: The folder that holds them.
        classes: Class names; matched by :mod:`fedshift_core.same_names`.
        aliases: Class name by a further, lower-case name of its folder.
        others: Lower-case names of folders to ignore.

    Raises:
        DataError: If a folder is no class, or two are the same class.
    """
    folders: dict[int, Path] = {}
    for sub in layout.visible(folder):
        if same_names.key(sub.name) in others or not layout.is_folder(sub):
            continue
        label = label_of(sub.name, classes, aliases or {})
        if label is None:
            raise DataError(f"{shown(sub.absolute())}: no class of that name; allowed are {', '.join(classes)}")
        if label in folders:
            problem = f"folders {shown(folders[label].name)} and {shown(sub.name)} both name"
            raise DataError(
                f"{shown(folder.absolute())}: {problem} the class {classes[label]}; allowed is one folder per class"
            )
        folders[label] = sub
    return sorted(folders.items())


def label_of(name: str, classes: tuple[str, ...], aliases: Mapping[str, str]) -> int | None:
    """Return the label that a folder's name stands for, None if it is no class; see :func:`class_folders`."""
    return same_names.place(name if name in classes else aliases.get(same_names.key(name), name), classes)


def resize(x: Pixels, size: int, how: Resize = "squash") -> Pixels:
    """Return images as RGB squares: bilinear with antialias, unchanged if the size is right.

    Args:
        x: Images, shape (N, H, W), (N, H, W, 1) or (N, H, W, 3), H and W above 0.
        size: Height and width of the result in pixels.
        how: As in :class:`~fedshift_datasets.base.Form`.

    Returns:
        Images of shape (N, size, size, 3); each depends on its own pixels alone.
    """
    x = x[..., np.newaxis] if x.ndim == 3 else x
    count, height, width, channels = x.shape
    if (height, width, channels) == (size, size, 3):
        return x
    if how != "squash" and height != width:
        rgb = _rgb(x)
        out = np.empty((count, size, size, 3), np.uint8)
        for number in range(count):
            out[number] = np.asarray(fit(Image.fromarray(np.ascontiguousarray(rgb[number])), size, how))
        return out
    # Here, because torchvision takes a second to import and images of the right size do not need it.
    import torch
    from torchvision.transforms import InterpolationMode  # type: ignore[import-untyped]
    from torchvision.transforms.v2 import functional  # type: ignore[import-untyped]

    out = np.empty((count, size, size, 3), np.uint8)
    step = max(1, _CHUNK // (max(height * width, size * size) * channels))
    for start in range(0, count, step):
        chunk = torch.tensor(np.ascontiguousarray(x[start : start + step])).permute(0, 3, 1, 2)
        resized = functional.resize(chunk, [size, size], InterpolationMode.BILINEAR, antialias=True)
        out[start : start + step] = resized.permute(0, 2, 3, 1).numpy()  # grey spreads over the three channels
    return out


def resized(images: ImageSet, size: int, how: Resize = "squash") -> ImageSet:
    """Return images by :func:`resize`, with labels, masks by :func:`fedshift_datasets.io.resize.fit`, and spacing."""
    x = resize(images.x, size, how)
    if images.masks is None:
        return ImageSet(x, images.y)
    height, width = images.masks.shape[1:]
    spacing = None if images.spacing is None else images.spacing * scale(width, height, size, how)
    if (height, width) == (size, size):
        return ImageSet(x, images.y, masks=images.masks, spacing=spacing)
    masks = np.stack([np.asarray(fit(Image.fromarray(mask), size, how)) for mask in images.masks])
    return ImageSet(x, main_class(masks, IGNORED), masks=masks, spacing=spacing)


def write_npz(path: Path, images: ImageSet, classes: tuple[str, ...] = ()) -> None:
    """Write ``images`` as a compressed npz, with all else that they have: completely or not at all, for its owner only.

    Args:
        path: The file.
        images: The images to write.
        classes: The classes that labels index, for the key ``classes``; empty for none.

    Raises:
        DataError: If the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        private_files.make_folder(path.parent)
        private_files.make(temporary)
        with temporary.open("wb") as file:
            arrays: dict[str, Any] = {"x": images.x, "y": images.y}
            arrays |= {} if images.groups is None else {npz.GROUPS: images.groups}
            arrays |= {} if images.masks is None else {npz.MASKS: images.masks}
            arrays |= {} if images.spacing is None else {npz.SPACING: images.spacing}
            np.savez_compressed(file, **arrays | ({npz.KEY: np.array(classes)} if classes else {}))
        temporary.replace(path)
    except OSError as cause:
        raise DataError(f"{shown(path.absolute())}: cannot be written ({brief(cause)})") from cause
    finally:
        _discard(temporary)


def _discard(path: Path) -> None:
    # The folder itself may be missing or closed; the first error is the one to show.
    with suppress(OSError):
        path.unlink(missing_ok=True)
