"""PACS: every layout on small trees, every refusal, and the real tars where they are."""

from pathlib import Path

import pytest
from image_trees import REAL, SPLITS, check_split, check_usual_refusals, fill, refusal, write_tar

from fedshift_datasets.base import Source
from fedshift_datasets.io import trees
from fedshift_datasets.sets import pacs

SMALL = dict.fromkeys(pacs.CLASSES, 3)  # 21 images, of which 8, 9, 18 and 19 are test


def members(domain: str) -> list[str]:
    return [f"{domain}/{name}/{number:04}.jpg" for name in pacs.CLASSES for number in range(3)]


def test_constants_are_the_published_ones() -> None:
    assert pacs.COUNTS == {"photo": 1670, "art_painting": 2048, "cartoon": 2344, "sketch": 3929}
    assert tuple(sorted(pacs.CLASSES)) == pacs.CLASSES and tuple(pacs.COUNTS) == pacs.DOMAINS


@pytest.mark.parametrize("base", ["", "PACS", "pacs", "kfold", "PACS/kfold"])
@pytest.mark.parametrize("domain", pacs.DOMAINS)
def test_folders(tmp_path: Path, base: str, domain: str) -> None:
    fill(tmp_path / base / domain, SMALL)
    problem = check_split(pacs.TREE.find, tmp_path, domain, train=17, test=4)
    assert problem["test"].labels.tolist() == [2, 3, 6, 6]
    assert problem["test"].items[0].path == tmp_path / base / domain / "giraffe" / "0002.jpg"


@pytest.mark.parametrize("base", ["", "PACS", "PACS/kfold"])
def test_tars(tmp_path: Path, base: str) -> None:
    path = tmp_path / base / "photo.tar"
    write_tar(path, reversed(members("photo")))
    problem = check_split(pacs.TREE.find, tmp_path, "photo", train=17, test=4)
    assert [item.name for item in problem["test"].items] == [members("photo")[i] for i in (8, 9, 18, 19)]
    assert {item.path for item in problem["train"].items} == {path}


def test_folders_and_tars_give_the_same_split(tmp_path: Path) -> None:
    fill(tmp_path / "a" / "photo", SMALL)
    write_tar(tmp_path / "b" / "photo.tar", members("photo"))
    for split in SPLITS:
        folders, tar = (pacs.TREE.find("photo", split, Source(tmp_path / name)) for name in "ab")
        assert [str(item.path.relative_to(tmp_path / "a")) for item in folders.items] == [i.name for i in tar.items]
        assert folders.labels.tolist() == tar.labels.tolist()


def test_folder_wins_over_tar(tmp_path: Path) -> None:
    fill(tmp_path / "kfold" / "photo", SMALL)
    write_tar(tmp_path / "photo.tar", members("photo"))
    assert pacs.TREE.find("photo", "test", Source(tmp_path)).items[0].length == -1


def test_refusals(tmp_path: Path) -> None:
    check_usual_refusals(pacs.TREE.find, tmp_path, pacs.DOMAINS)
    fill(tmp_path / "PACS" / "photo", SMALL | {"house": 0})
    write_tar(tmp_path / "sketch.tar", [*members("sketch"), "sketch/cat/1.jpg"])
    assert refusal(pacs.TREE.find, tmp_path, "cartoon").endswith("\nDomains of pacs there: photo, sketch")
    assert f"{tmp_path}/PACS/photo: images of 6 classes, expected 7; none of house" in refusal(
        pacs.TREE.find, tmp_path, "photo"
    )
    assert "member sketch/cat/1.jpg is of no class" in refusal(pacs.TREE.find, tmp_path, "sketch")
    fill(tmp_path / "PACS" / "photo", {"cat": 1, "house": 1})
    assert "/photo/cat: no class of that name" in refusal(pacs.TREE.find, tmp_path, "photo")


@pytest.mark.parametrize(("suffix", "mode"), [(".tar.gz", "w:gz"), (".tgz", "w:gz"), (".tar.xz", "w:xz")])
def test_compressed_tar_is_named(tmp_path: Path, suffix: str, mode: str) -> None:
    write_tar(tmp_path / f"photo{suffix}", members("photo"), mode=mode)
    assert refusal(pacs.TREE.find, tmp_path, "photo").startswith(f"{tmp_path}/photo{suffix}: compressed with ")


# --- the real tars


@pytest.fixture(scope="module")
def real() -> Path:
    if not (REAL / "PACS").is_dir():
        pytest.skip(f"the real PACS tars are not at {REAL}/PACS (FEDSHIFT_TEST_DATA names another folder)")
    return REAL


@pytest.mark.parametrize(("domain", "test"), list(zip(pacs.DOMAINS, (334, 408, 468, 785), strict=True)))
def test_real_tars_have_the_published_counts(real: Path, domain: str, test: int) -> None:
    problem = check_split(pacs.TREE.find, real, domain, train=pacs.COUNTS[domain] - test, test=test)
    totals = [trees.class_counts(problem[split].labels, pacs.CLASSES) for split in SPLITS]
    counts = {name: totals[0][name] + totals[1][name] for name in pacs.CLASSES}
    assert trees.compare_counts(counts, pacs.CLASS_COUNTS[domain]) is None
    ordered = [line for line in (real / "PACS" / "list.txt").read_text().split() if line.startswith(f"{domain}/")]
    assert [item.name for item in problem["test"].items] == [n for i, n in enumerate(sorted(ordered)) if i % 10 >= 8]
    for item in problem["test"].items[::50]:
        with item.path.open("rb") as file:
            file.seek(item.offset)
            content = file.read(item.length)
        assert content[:2] == b"\xff\xd8" and content[-2:] == b"\xff\xd9"  # a whole JPEG
