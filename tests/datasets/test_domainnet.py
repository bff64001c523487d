"""DomainNet and its ten classes: lists and folders on small trees, and every refusal."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from data_refusals import refuses
from image_trees import Find, check_usual_refusals, fill

from fedshift_datasets.base import Source, Split
from fedshift_datasets.sets import domainnet
from fedshift_datasets.sets.domainnet import CLASSES, CLASSES10


def write(
    root: Path, classes: Sequence[str] = CLASSES10, *, domain: str = "clipart", split: Split = "train", lists: str = ""
) -> Path:
    """Write two images of some classes and a list of them; return the list."""
    fill(root / domain, dict.fromkeys(classes, 2))
    path = root / lists / f"{domain}_{split}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{domain}/{name}/{i:04}.jpg {CLASSES.index(name)}\n" for name in classes for i in range(2)]
    path.write_text("".join(lines))
    return path


def test_constants_are_the_published_ones() -> None:
    assert len(CLASSES) == len(set(CLASSES)) == 345 and set(CLASSES10) <= set(CLASSES)
    assert list(CLASSES) == sorted(CLASSES, key=lambda name: "".join(filter(str.isalnum, name.lower())))
    assert sum(domainnet.COUNTS.values()) == 586_575 and tuple(domainnet.COUNTS) == domainnet.DOMAINS


@pytest.mark.parametrize(
    ("base", "lists", "split"), [("", "", "train"), ("DomainNet", "splits", "test"), ("", "txt", "test")]
)
def test_all_classes_in_the_order_of_the_list(tmp_path: Path, base: str, lists: str, split: Split) -> None:
    write(tmp_path / base, CLASSES[::-1], split=split, lists=lists)
    images = domainnet.find("clipart", split, Source(tmp_path))
    assert images.labels.tolist() == [label for label in range(344, -1, -1) for _ in range(2)]
    assert Path(images.items[0].path) == tmp_path / base / "clipart" / "zigzag" / "0000.jpg"


@pytest.mark.parametrize("domain", domainnet.DOMAINS)
def test_ten_classes_leave_the_others_out(tmp_path: Path, domain: str) -> None:
    path = write(tmp_path, domain=domain)
    path.write_text(f"{domain}/airplane/absent.jpg 1\n{path.read_text()}")
    result = domainnet.find10(domain, "train", Source(tmp_path))
    assert result.labels.tolist() == [label for label in range(10) for _ in range(2)]
    with refuses(path, 1, 21, "absent.jpg"):
        domainnet.find(domain, "train", Source(tmp_path))


@pytest.mark.parametrize("find", [domainnet.find, domainnet.find10])
def test_usual_refusals(tmp_path: Path, find: Find) -> None:
    check_usual_refusals(find, tmp_path, domainnet.DOMAINS)
    path = write(tmp_path, ["ant", *CLASSES10[:8]])
    with refuses("real_train.txt", "there: clipart"):
        find("real", "train", Source(tmp_path))
    if find is domainnet.find10:
        with refuses(8, 10, "wine_glass, zebra"):
            find("clipart", "train", Source(tmp_path))
    else:
        assert len(find("clipart", "train", Source(tmp_path))) == 18
    (tmp_path / "clipart" / "bird" / "0001.jpg").unlink()
    with refuses(path, 1, "clipart/bird/0001.jpg"):
        find("clipart", "train", Source(tmp_path))
    shutil.rmtree(tmp_path / "clipart")
    with refuses(path, "clipart/<class>/"):
        find("clipart", "train", Source(tmp_path))


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (b"clipart/bird/0000.jpg", "line 21 clipart/bird/0000.jpg"),
        (b"clipart/bird/0000.jpg x", "line 21"),
        (b"sketch/bird/0000.jpg 31", "line 21"),
        (b"clipart/../bird/0000.jpg 31", "line 21"),
        (b"bird/0000.jpg 31", "line 21"),
        (b"clipart/unicorn/0000.jpg 345", "line 21 unicorn 345"),
        (b"clipart/bird/0000.jpg 7", "line 21 bird 7 31"),
        (b"clipart/ant/0000.jpg 31", "line 21 ant 31 bird"),
        (b"\xff\xfe\x00", ""),
    ],
)
def test_bad_line_is_refused_by_number(tmp_path: Path, line: bytes, named: str) -> None:
    path = write(tmp_path)
    path.write_bytes(path.read_bytes() + line + b"\n")
    with refuses(path, *named.split()):
        domainnet.find("clipart", "train", Source(tmp_path))
    path.write_text("\n\n")
    with refuses(path):
        domainnet.find("clipart", "train", Source(tmp_path))
