"""Masks of a user's own images: found, read as classes, moved with their image, kept, and refused by name."""

import functools
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import dicom_files
import nibabel
import numpy as np
import pytest
from data_refusals import refuses
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pydicom import Dataset, Sequence
from pydicom.uid import UID, ExplicitVRLittleEndian, RLELossless

from fedshift_datasets import catalog, listing
from fedshift_datasets.base import PLAIN, Exif, Form, ImageSet, Resize, Source
from fedshift_datasets.io import corrupt_files, decode, masks, npz, pool
from fedshift_datasets.listing import IGNORED, Item, Listing
from fedshift_datasets.sets import folders

CLASSES = ("background", "lesion", "vessel")
COLOURS = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255]], np.uint8)  # of the classes; black is what `pad` adds


def array(values: Any, mode: str | None = None) -> Image.Image:
    image = Image.fromarray(np.array(values, np.uint8))
    return image if mode is None else image.convert(mode)


def put(site: Path, name: str, image: Image.Image | None, mask: Image.Image | None, end: str = ".png") -> None:
    for kind, picture, suffix in (("images", image, ".png"), ("masks", mask, end)):
        (site / kind).mkdir(parents=True, exist_ok=True)
        if picture is not None:
            picture.save(site / kind / f"{name}{suffix}")


def source(root: Path, **more: Any) -> Source:
    return Source(**{"data_dir": root, "classes": CLASSES, "masks": True, **more})


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode here, where it is seen which lines are run; test_pool.py has the processes."""
    monkeypatch.setattr(pool, "mapped", lambda work, items, workers: map(work, items))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Make a site of ten pairs: a picture in the colour of a class, whose mask has that class but for a line of 255."""
    for number in range(10):
        values = np.full((8, 8), number % 3)
        mask = values.copy()
        mask[0] = IGNORED
        put(tmp_path / "north", f"{number}", array(COLOURS[values]), array(mask))
    return tmp_path


def load(root: Path, split: Any = "train", form: Form = PLAIN, **more: Any) -> ImageSet:
    catalog.forget()
    return catalog.load("folders", "north", split, source(root, **more), 8, form)


def test_pairs_are_read_kept_and_read_again_when_a_mask_changes(site: Path, cache_home: Path) -> None:
    images = load(site)
    assert images.masks is not None and images.masks.shape == (8, 8, 8)
    assert np.array_equal(images.y, COLOURS.argmax(1)[images.x[:, 4, 4].argmax(-1)])  # the class of each picture
    assert (images.masks[:, 0] == IGNORED).all() and np.array_equal(images.masks[:, 5, 5], images.y)
    first = catalog.content("folders", "north", "train", source(site), 8)
    assert isinstance(load(site).masks.base, np.memmap)  # type: ignore[union-attr]
    changed = Path(folders.find("north", "train", source(site)).masks[0])  # type: ignore[union-attr, index]
    array(np.ones((8, 8))).save(changed)
    again = load(site)
    assert again.masks is not None and (again.masks[0] == 1).all() and again.y[0] == 1
    assert np.array_equal(again.masks[1:], images.masks[1:]) and np.array_equal(again.x, images.x)
    assert catalog.content("folders", "north", "train", source(site), 8) != first
    wanted = again.masks.copy()
    (kept,) = cache_home.glob("folders-north-train*")
    content = bytearray(kept.read_bytes())
    content[content.index(bytes([1] * 64))] = 2  # a pixel of a mask
    kept.write_bytes(content)
    mended = load(site).masks
    assert mended is not None and np.array_equal(mended, wanted)


def lossy(mask: Image.Image) -> bytes:
    mask.convert("L").save(out := io.BytesIO(), "JPEG")
    return out.getvalue()


def webp(mask: Image.Image) -> bytes:
    mask.convert("RGB").save(out := io.BytesIO(), "WEBP", lossless=False)
    return out.getvalue()


ZERO, WHOLE = array(np.zeros((4, 6))), array(np.zeros((4, 6, 3)))
#: Pairs that are none, with words of the reason. Bytes are a file's content.
BROKEN: dict[str, tuple[Image.Image | None, Image.Image | bytes | None, str]] = {
    "alone": (WHOLE, None, "no mask"),
    "orphan": (None, ZERO, "without an image"),
    "wide": (WHOLE, array(np.zeros((6, 4))), "4 x 6 pixels, the image 6 x 4"),
    "value": (WHOLE, array(np.full((4, 6), 3)), "values 3; allowed are 0 to 2 for the classes, and 255"),
    "shades": (WHOLE, array(np.arange(3, 27).reshape(4, 6)), "3, 4, 5, 6, 7, 8 and 18 more"),
    "deep": (WHOLE, Image.fromarray(np.full((4, 6), 300, np.uint16)), "300"),
    "colours": (WHOLE, array(COLOURS[np.zeros((4, 6), int)]), "in colours"),
    "jpeg": (WHOLE, lossy(ZERO), "with loss"),
    "webp": (WHOLE, webp(ZERO), "with loss"),
    "text": (WHOLE, b"nothing", "cannot be read"),
    "cut": (WHOLE, b"\x89PNG\r\n\x1a\n", "cannot be read"),
}


def test_each_broken_pair_is_named_and_may_be_left_out(tmp_path: Path, cache_home: Path) -> None:
    north = tmp_path / "north" / "train"
    put(north, "good", WHOLE, ZERO)
    put(tmp_path / "north" / "test", "good", WHOLE, ZERO)
    for name, (image, mask, _) in BROKEN.items():
        put(north, name, image, None if isinstance(mask, bytes) else mask)
        if isinstance(mask, bytes):
            (north / "masks" / f"{name}.png").write_bytes(mask)
    listing = folders.find("north", "train", source(tmp_path))
    assert isinstance(listing, Listing) and len(listing) == len(BROKEN) + 1
    reasons = {Path(bad.name).stem: bad.reason for bad in corrupt_files.of(listing)}
    assert reasons.keys() == BROKEN.keys()
    assert not [(name, reasons[name]) for name, (_, _, words) in BROKEN.items() if words not in reasons[name]]
    with refuses(north / "images" / "alone.png", "no mask"):
        load(tmp_path)
    assert len(load(tmp_path, skip_broken=True)) == 1


def layout(damage: Callable[[Path], object], *words: str, **more: Any) -> Any:
    return pytest.param(damage, words, more, id=words[0])


def table(*rows: str) -> Callable[[Path], object]:
    return lambda root: (root / "labels.csv").write_text("\n".join(rows))


@pytest.mark.parametrize(
    ("damage", "words", "more"),
    [
        layout(lambda root: (root / "north/masks").rename(root / "north/mask"), "masks", "images"),
        layout(lambda root: (root / "north/images/0.bmp").write_bytes(b""), "0.bmp", "0.png"),
        layout(lambda root: put(root / "north/masks", "p1", WHOLE, ZERO), "masks", "labels.csv"),
        layout(table("file,label,domain", "north/images/0.png,x,north"), "labels.csv", "mask", "label"),
        layout(table("file,mask,domain", "north/images/0.png,,north"), "labels.csv", "line 2", "mask"),
        layout(table("file,mask,domain", "north/images/0.png,north/masks/x.png,north"), "line 2", "x.png"),
        layout(table("file,mask,domain", "north/images/0.png,../x.png,north"), "../x.png"),
        layout(lambda root: None, "255", classes=tuple(map(str, range(256)))),
        layout(lambda root: put(root / "north", "0", None, array([[0, 77]])), "77", "dataset.classes", classes=()),
        layout(lambda root: None, "task=segmentation", "images", classes=(), masks=False),
    ],
)
def test_layouts_that_are_none_are_refused(
    site: Path, damage: Callable[[Path], object], words: tuple[str, ...], more: dict[str, Any]
) -> None:
    damage(site)
    with refuses(*words):
        folders.survey(source(site, **more))


def test_a_table_names_masks_and_values_name_classes(site: Path) -> None:
    assert folders.names(source(site, classes=())).classes == ("background", "class1", "class2")
    rows = [f"north/images/{n}.png,north/masks/{(n + 3) % 9}.png,north,p{n // 2},train" for n in range(9)]
    table("file,mask,domain,patient,split", *rows, "north/images/9.png,north/masks/9.png,north,p9,test")(site)
    images = load(site)
    assert images.masks is not None and images.masks[:, 5, 5].tolist() == [n % 3 for n in range(9)]
    assert images.groups is not None and len(set(images.groups.tolist())) == 5
    npz.write(site / "out" / "north_train.npz", images, CLASSES)
    (site / "labels.csv").rename(site / "other.csv")
    swapped = source(site / "out", classes=("background", "vessel", "lesion"))
    exported = catalog.load("folders", "north", "train", swapped, 8)
    assert exported.masks is not None and np.array_equal(exported.x, images.x)
    assert np.array_equal(exported.masks, np.array([0, 2, 1, *[IGNORED] * 253], np.uint8)[images.masks])


@pytest.mark.parametrize(
    ("stored", "meant"),
    [
        ([0, 1, 255], [0, 1, 255]),
        ([0, 255, 255], [0, 1, 1]),
        ([0, 255, 254], [0, 1, 255]),
        ([0, 0, 0], [0, 0, 0]),
    ],
)
@pytest.mark.parametrize("mode", ["L", "P", "RGB", "RGBA", "LA", "I;16", "1"])
def test_values_of_two_classes_in_any_mode(stored: list[int], meant: list[int], mode: str) -> None:
    picture = array([stored])
    if mode == "1":
        stored, meant = [0, 255, 0], [0, 1, 0]
        picture = array([stored], "1")
    elif mode == "P":
        picture.putpalette(list(np.random.default_rng(0).integers(0, 256, 768)))
    elif mode == "I;16":
        picture = Image.fromarray(np.array([stored], np.uint16))
    else:
        picture = picture.convert(mode)
    for form in ("PNG", "TIFF"):
        picture.save(out := io.BytesIO(), form)
        assert np.asarray(masks.read(out.getvalue(), form, 2)[0]).tolist() == [meant]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 5, 32]), st.sampled_from(get_args(Resize)),
    st.sampled_from(get_args(Exif)), st.integers(1, 8), st.integers(0, 9),
)  # fmt: skip
def test_a_mask_goes_where_its_picture_goes(
    tmp_path_factory: pytest.TempPathFactory,
    width: int, height: int, size: int, resize: Resize, exif: Exif, turn: int, seed: int,
) -> None:  # fmt: skip
    """A picture says by its colours which class is where: in a pure colour the mask has that class."""
    folder = tmp_path_factory.mktemp("pair")
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 3, (3, 3))
    classes = blocks[np.arange(height)[:, None] * 3 // height, np.arange(width) * 3 // width]
    orientation = Image.Exif()
    orientation[274] = turn
    array(COLOURS[classes]).save(folder / "image.png", exif=orientation)
    array(classes).save(folder / "mask.png")
    item = Item(str(folder / "image.png"), "image", mask=str(folder / "mask.png"), classes=3)
    made = decode.decoded(item, size, Form(resize, exif=exif))
    assert made.mask is not None and made.mask.shape == (size, size)
    for place, colour in enumerate(COLOURS):
        assert (made.mask[(made.pixels == colour).all(-1)] == place).all()
    padded = (made.pixels == 0).all(-1)
    assert np.array_equal(padded, made.mask == IGNORED)
    assert padded.any() <= (resize == "pad")


def test_a_mask_with_an_orientation_of_its_own_is_turned_by_it(tmp_path: Path) -> None:
    classes, orientation = np.arange(6).reshape(2, 3) % 3, Image.Exif()
    orientation[274] = 6
    for name, values in (("image", COLOURS[classes]), ("mask", classes)):
        array(values).save(tmp_path / f"{name}.png", exif=orientation)
    item = functools.partial(Item, tmp_path / "image.png", "image", classes=3)
    made = decode.decoded(item(mask=str(tmp_path / "mask.png")), 32, Form(exif="apply"))
    assert made.mask is not None
    assert np.array_equal(made.mask[::12, ::31], np.rot90(classes, -1))


def volume(path: Path, values: Any, affine: Any = None, window: tuple[float, float] = (0, 0), unit: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nibabel.Nifti1Image(np.asarray(values), np.eye(4) if affine is None else affine)
    image.header["xyzt_units"] = unit
    image.header["cal_min"], image.header["cal_max"] = window
    image.to_filename(path)


def check_slices(root: Path, form: Form, number: int) -> tuple[list[ImageSet], list[set[str]]]:
    """Check that slices have the levels of their masks' classes; return the images of both splits and the patients."""
    assert folders.names(source(root, classes=())).classes == ("background", "class1", "class2")
    parts = [load(root, split, form) for split in ("train", "test")]
    assert sum(map(len, parts)) == number
    for images in parts:
        assert images.masks is not None
        assert np.array_equal(np.array([0, 128, 255])[images.masks], images.x[..., 0])
    return parts, [set(images.groups.tolist()) for images in parts]  # type: ignore[union-attr]


def test_volumes_are_cut_into_slices_of_one_patient(tmp_path: Path, cache_home: Path) -> None:
    rng, north = np.random.default_rng(0), tmp_path / "north"
    for number in range(4):
        found = rng.integers(0, 3, (8, 8, 6 + number))
        volume(north / "images" / f"p{number}.nii.gz", (found * 100 - 100).astype(np.int16))
        volume(north / "masks" / f"p{number}_mask.nii.gz", found.astype(np.float32))
    parts, (trained, tested) = check_slices(tmp_path, Form(window=(-100, 100)), 6 + 7 + 8 + 9)
    assert not trained & tested
    for images in parts:
        assert images.masks is not None and images.groups is not None
        first = Path(images.groups[0]).name.partition(".")[0]
        stored = np.asarray(nibabel.load(north / "masks" / f"{first}_mask.nii.gz").dataobj)
        assert np.array_equal(images.masks[0], np.rot90(stored[..., 0]))


def enhanced(path: Path, values: Any, low: int = 0, syntax: UID = ExplicitVRLittleEndian, **tags: Any) -> None:
    """Write frames (N, H, W) with a rescaling, a place in space and a spacing of their own."""
    groups = []
    for number in range(len(values)):
        measures, rescaling, position, group = Dataset(), Dataset(), Dataset(), Dataset()
        measures.PixelSpacing = [2, 0.5 + number]
        rescaling.RescaleSlope, rescaling.RescaleIntercept = 1, -number
        position.ImagePositionPatient = [0, 0, low + number]
        group.PixelMeasuresSequence, group.PlanePositionSequence = Sequence([measures]), Sequence([position])
        group.PixelValueTransformationSequence = Sequence([rescaling])
        groups.append(group)
    frames = {"NumberOfFrames": len(values), "PerFrameFunctionalGroupsSequence": Sequence(groups)}
    data = dicom_files.made(values[0], **frames, **tags)
    data.PixelData = values.tobytes()
    if syntax != ExplicitVRLittleEndian:
        data.compress(syntax, generate_instance_uid=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(dicom_files.written(data))


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, RLELossless])
def test_frames_of_a_file_are_slices_of_one_patient(tmp_path: Path, cache_home: Path, syntax: UID) -> None:
    rng, north = np.random.default_rng(0), tmp_path / "north"
    for number in range(4):
        found = rng.integers(0, 3, (2 + number, 8, 8), np.uint8)
        shades = found * 100 + np.arange(2 + number, dtype=np.uint8)[:, None, None]  # which the rescaling takes off
        enhanced(north / "images" / f"p{number}.dcm", shades, syntax=syntax, PatientID=f"p{number // 2}")
        enhanced(north / "masks" / f"p{number}.dcm", found, syntax=syntax)
    parts, groups = check_slices(tmp_path, Form(window=(0, 200)), 2 + 3 + 4 + 5)
    assert sorted(map(sorted, groups)) == [["p0"], ["p1"]]
    for images in parts:
        assert images.spacing is not None
        assert sorted({pair[1] for pair in images.spacing.tolist()}) == [0.5 + n for n in range(len(images) // 2 + 1)]


def test_frames_that_do_not_fit_are_named(tmp_path: Path, cache_home: Path) -> None:
    train, zero = tmp_path / "north" / "train", np.zeros((3, 4, 6), np.uint8)
    put(tmp_path / "north" / "test", "good", WHOLE, ZERO)
    put(train, "flat", None, ZERO)
    put(train, "good", WHOLE, ZERO)
    segments = "1.2.840.10008.5.1.4.1.1.66.4"
    reasons = {
        "fewer": ({"values": zero[:2]}, "has 2 frames, the image 3"),
        "moved": ({"values": zero, "low": 5}, "elsewhere in space in frame 0"),
        "segments": ({"values": zero, "SOPClassUID": segments}, "a DICOM segmentation"),
        "flat": (None, "two DICOM files of several frames"),
    }
    for name, (mask, _) in reasons.items():
        enhanced(train / "images" / f"{name}.dcm", zero)
        if mask is not None:
            enhanced(train / "masks" / f"{name}.dcm", **mask)
    listing = folders.find("north", "train", source(tmp_path))
    assert isinstance(listing, Listing)
    broken = {Path(bad.name).name.partition(".")[0]: bad.reason for bad in reversed(corrupt_files.of(listing))}
    assert broken.keys() == reasons.keys()
    assert not [name for name, (_, words) in reasons.items() if words not in broken[name]], broken


#: Height and width of slices of 16 by 8 pixels of 2 by 0.5 mm, as squares of 8 pixels: millimetres, down and across.
FITTED = {"squash": (4, 0.5), "crop": (2, 0.5), "pad": (4, 1)}


@pytest.mark.parametrize("resize", get_args(Resize))
def test_spacing_goes_with_its_image(resize: Resize, tmp_path: Path, cache_home: Path) -> None:
    """Into the square, the cache, an npz file and parts of a set; half a set of unknown spacing has none."""
    drawn, north = np.random.default_rng(0).integers(0, 3, (8, 16, 4), np.uint8), tmp_path / "north"
    for split, unit in (("train", 2), ("test", 3)):  # millimetres and their thousandths
        affine = np.diag([0.5, 2, 9, 1]) * (1 if unit == 2 else 1e3)
        for kind in ("images", "masks"):
            volume(north / split / kind / "p.nii.gz", drawn, affine, unit=unit)
    put(north / "test", "flat", array(np.zeros((16, 8, 3))), array(np.zeros((16, 8))))
    for _ in ("decoded", "kept"):
        known, mixed = (load(tmp_path, split, Form(resize)) for split in ("train", "test"))
        assert known.spacing is not None and mixed.spacing is not None
        np.testing.assert_allclose(known.spacing, np.tile(FITTED[resize], (4, 1)))
        assert np.isnan(mixed.spacing).all(axis=1).tolist() == [True, False, False, False, False]
        np.testing.assert_allclose(mixed.spacing[1:], known.spacing)
    both = listing.joined([known, ImageSet(known.x, known.y), mixed.labelled(mixed.y)]).select(np.arange(2, 9))
    assert both.spacing is not None and np.isnan(both.spacing[:, 0]).tolist() == [False] * 2 + [True] * 5
    npz.write(tmp_path / "out" / "north_train.npz", mixed, CLASSES)
    halved = catalog.load("folders", "north", "train", source(tmp_path / "out"), 4, Form(resize))
    np.testing.assert_allclose(halved.spacing, 2 * mixed.spacing)
    assert (
        catalog.load("folders", "north", "train", source(tmp_path / "out", masks=False), 4, Form(resize)).masks is None
    )


@pytest.mark.parametrize(
    "spacing", [np.ones((4, 3)), np.array([["a", "b"]] * 4), np.zeros((4, 2)), np.full((4, 2), np.inf)]
)
def test_spacing_that_is_none_is_refused(spacing: Any, tmp_path: Path) -> None:
    zero = np.zeros((4, 8, 8), np.uint8)
    np.savez(tmp_path / "north_train.npz", x=zero, y=np.zeros(4, int), masks=zero, classes=CLASSES, spacing=spacing)
    with refuses("north_train.npz", "spacing", "millimetres", "(4, 2)"):
        npz.read(tmp_path / "north_train.npz", classes=CLASSES, masks=True)


def test_volumes_that_do_not_fit_are_named(tmp_path: Path, cache_home: Path) -> None:
    train, moved = tmp_path / "north" / "train", np.diag([1, 1, 2, 1])
    put(tmp_path / "north" / "test", "good", WHOLE, ZERO)
    put(train, "good", WHOLE, ZERO)
    put(train, "flat", None, ZERO)
    zero = np.zeros((4, 6, 2), np.uint8)
    reasons = {
        "shape": (zero, np.zeros((4, 6, 3), np.uint8), None, "4 x 6 x 3 voxels, the image 4 x 6 x 2"),
        "moved": (zero, zero, moved, "elsewhere in space"),
        "half": (zero, zero + np.float32(0.5), None, "values 0.5; allowed are 0 to 2"),
        "ct": (zero.astype(np.int16), zero, None, "dataset.window=[low,high]"),
        "four": (np.zeros((4, 6, 2, 3), np.uint8), zero, None, "three axes"),
        "flat": (zero, None, None, "two NIfTI volumes"),
    }
    for name, (image, mask, affine, _) in reasons.items():
        volume(train / "images" / f"{name}.nii", image)
        if mask is not None:
            volume(train / "masks" / f"{name}.nii.gz", mask, affine)
    (train / "images" / "cut.nii.gz").write_bytes((train / "masks" / "half.nii.gz").read_bytes()[:-40])
    volume(train / "masks" / "cut.nii.gz", zero)
    listing = folders.find("north", "train", source(tmp_path))
    assert isinstance(listing, Listing)
    broken = [(Path(bad.name).name.partition(".")[0], bad.reason) for bad in corrupt_files.of(listing)]
    assert {name for name, _ in broken} == {*reasons, "cut"}
    assert not [each for each in broken if each[0] in reasons and reasons[each[0]][3] not in each[1]]
    assert len(load(tmp_path, skip_broken=True)) == 1
    volume(train / "images" / "ct.nii", zero.astype(np.int16), window=(-5, 5))
    assert "ct" not in {Path(bad.name).name.partition(".")[0] for bad in corrupt_files.of(listing)}
