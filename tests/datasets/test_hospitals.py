"""Camelyon17 of WILDS and Fed-ISIC2019 of FLamby, in their layouts, on files that are only listed."""

from pathlib import Path

import pytest
from data_refusals import refuses
from image_trees import SPLITS, check_usual_refusals, refusal

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
    by_name = {
        (domain, split): camelyon.TREE.find(domain, split, Source(wilds))
        for domain, split in (("hospital0", "train"), ("hospital0", "test"), ("hospital4", "train"))
    }
    assert [one.labels.tolist() for one in by_name.values()] == [[1], [0], [0]]
    assert by_name["hospital0", "train"].items[0].path.name == "patch_patient_004_node_4_x_3328_y_21792.png"
    # WILDS puts all of centre 1 into its validation, all of centre 2 into its test, whatever the column says.
    for domain, label in (("hospital1", 0), ("hospital2", 1)):
        assert camelyon.TREE.find(domain, "test", Source(wilds)).labels.tolist() == [label]
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
    rows = [
        ("ISIC_0065613", 1, 0, "train"),
        ("ISIC_0063710", 2, 0, "test"),
        ("ISIC_0012669_downsampled", 1, 4, "train"),
    ]
    lines = ["image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK,target,center,fold,fold2"]
    for image, target, center, fold in rows:
        lines.append(f"{image},{'0.0,' * 9}{target},{center},{fold},{fold}_{center}")
        write(tmp_path / folder / f"{image}.jpg")
    write(tmp_path / "train_test_split", "\n".join(lines) + "\n")
    values = [isic.TREE.find("bcn", split, Source(tmp_path)) for split in SPLITS]
    assert [one.items[0].path.stem for one in values] == ["ISIC_0065613", "ISIC_0063710"]
    assert [isic.CLASSES[one.labels[0]] for one in values] == ["NV", "BCC"]
    assert len(isic.TREE.find("msk", "train", Source(tmp_path))) == 1
    assert "no train images of rosendahl" in refusal(isic.TREE.find, tmp_path, "rosendahl")


def test_the_usual_refusals(tmp_path: Path) -> None:
    for number, one in enumerate((camelyon, isic)):
        (empty := tmp_path / str(number)).mkdir()
        check_usual_refusals(one.TREE.find, empty, one.DOMAINS)
