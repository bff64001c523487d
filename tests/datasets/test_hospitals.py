"""Camelyon17 of WILDS and Fed-ISIC2019 of FLamby, in their layouts, on files that are only listed."""

from pathlib import Path

import pytest
from data_refusals import refuses
from image_trees import refusal

from fedshift_datasets.base import Source
from fedshift_datasets.sets import camelyon, isic

#: Line by line: patient, node, x, y, tumor, slide, center, split.
PATCHES = [("004", 4, 3328, 21792, 1, 0, 0, 0), ("004", 4, 3200, 22272, 0, 0, 0, 1), ("017", 1, 10, 20, 0, 7, 1, 0),
           ("042", 3, 30, 40, 1, 23, 2, 1), ("081", 4, 1, 2, 0, 40, 4, 0)]  # fmt: skip


def write(path: Path, text: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def wilds(tmp_path: Path) -> Path:
    base = tmp_path / "camelyon17_v1.0"
    lines = [",patient,node,x_coord,y_coord,tumor,slide,center,split"]
    for number, patch in enumerate(PATCHES):
        lines.append(",".join(map(str, (number, *patch))))
        patient, node, x, y = patch[:4]
        whose = f"patient_{patient}_node_{node}"
        write(base / "patches" / whose / f"patch_{whose}_x_{x}_y_{y}.png")
    write(base / "metadata.csv", "\n".join(lines) + "\n")
    return tmp_path


def test_camelyon17_has_the_official_split(wilds: Path) -> None:
    # WILDS puts all of centre 1 into its validation, all of centre 2 into its test, whatever the column says.
    for center, split, label in ((0, "train", 1), (0, "test", 0), (4, "train", 0), (1, "test", 0), (2, "test", 1)):
        images = camelyon.TREE.find(f"hospital{center}", split, Source(wilds))
        assert images.labels.tolist() == [label]
        if split == "train":
            assert Path(images.items[0].path).name.startswith("patch_patient_0" if center == 0 else "patch_patient_081")
    for domain in ("hospital1", "hospital2"):
        assert f"no train images of {domain}" in refusal(camelyon.TREE.find, wilds, domain)


def test_a_patch_that_is_missing_and_a_row_that_is_wrong_are_named(wilds: Path) -> None:
    next((wilds / "camelyon17_v1.0" / "patches" / "patient_081_node_4").iterdir()).unlink()
    with refuses("metadata.csv line 6"):
        camelyon.TREE.find("hospital4", "train", Source(wilds))
    table = wilds / "camelyon17_v1.0" / "metadata.csv"
    table.write_text(table.read_text() + "5,1,1,1,1,0,0,7,0\n")
    with refuses("line 7", "center '7'", "0 to 4"):
        camelyon.TREE.find("hospital4", "train", Source(wilds))


@pytest.mark.parametrize("folder", ["ISIC_2019_Training_Input_preprocessed", "ISIC_2019_Training_Input", ""])
def test_fed_isic2019_has_flambys_split(tmp_path: Path, folder: str) -> None:
    lines = ["image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK,target,center,fold,fold2"]
    for image, end in (("1", "1,0,train,train_0"), ("2", "2,0,test,test_0"), ("3_downsampled", "1,4,train,train_4")):
        lines.append(f"ISIC_{image},{'0.0,' * 9}{end}")
        write(tmp_path / folder / f"ISIC_{image}.jpg")
    write(tmp_path / "train_test_split", "\n".join(lines) + "\n")
    parts = (("bcn", "train", "1", "NV"), ("bcn", "test", "2", "BCC"), ("msk", "train", "3", "NV"))
    for domain, split, image, name in parts:
        images = isic.TREE.find(domain, split, Source(tmp_path))
        (item,) = images.items
        assert Path(item.path).stem.startswith(f"ISIC_{image}") and isic.CLASSES[images.labels[0]] == name
    assert "no train images of rosendahl" in refusal(isic.TREE.find, tmp_path, "rosendahl")
