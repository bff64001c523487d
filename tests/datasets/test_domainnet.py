"""DomainNet and its ten classes: lists and folders on small trees, and every refusal."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from image_trees import SPLITS, Find, check_usual_refusals, fill, refusal

from fedshift_datasets.base import Source, Split
from fedshift_datasets.sets import domainnet
from fedshift_datasets.sets.domainnet import CLASSES, CLASSES10


def write(
    root: Path,
    classes: Sequence[str] = CLASSES10,
    *,
    domain: str = "clipart",
    split: Split = "train",
    lists: str = "",
    images: int = 2,
) -> Path:
    """Write the images of some classes and a list of them; return the list."""
    fill(root / domain, dict.fromkeys(classes, images))
    path = root / lists / f"{domain}_{split}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{domain}/{name}/{i:04}.jpg {CLASSES.index(name)}\n" for name in classes for i in range(images)]
    path.write_text("".join(lines))
    return path


def test_constants_are_the_published_ones() -> None:
    assert len(CLASSES) == len(set(CLASSES)) == 345 and set(CLASSES10) <= set(CLASSES)
    assert list(CLASSES) == sorted(CLASSES, key=lambda name: "".join(filter(str.isalnum, name.lower())))
    assert sum(domainnet.COUNTS.values()) == 586_575 and tuple(domainnet.COUNTS) == domainnet.DOMAINS


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("base", ["", "DomainNet"])
@pytest.mark.parametrize("lists", ["", "splits", "txt"])
def test_all_classes_in_the_order_of_the_list(tmp_path: Path, base: str, lists: str, split: Split) -> None:
    write(tmp_path / base, CLASSES[::-1], split=split, lists=lists, images=1)
    images = domainnet.find("clipart", split, Source(tmp_path))
    assert images.labels.tolist() == list(range(345))[::-1]
    assert images.items[0].path == tmp_path / base / "clipart" / "zigzag" / "0000.jpg"
    assert images.items[0].name == str(images.items[0].path) and images.items[0].length == -1


@pytest.mark.parametrize("domain", domainnet.DOMAINS)
def test_ten_classes_leave_the_others_out(tmp_path: Path, domain: str) -> None:
    path = write(tmp_path, domain=domain)
    path.write_text(f"{domain}/airplane/absent.jpg 1\n{path.read_text()}")
    result = domainnet.find10(domain, "train", Source(tmp_path))
    assert result.labels.tolist() == [label for label in range(10) for _ in range(2)]
    assert "1 of 21 images that it names are not there" in refusal(domainnet.find, tmp_path, domain)


def test_class_without_images_is_no_error_in_domainnet(tmp_path: Path) -> None:
    write(tmp_path, ["ant", "zebra"])
    assert domainnet.find("clipart", "train", Source(tmp_path)).labels.tolist() == [6, 6, 343, 343]


@pytest.mark.parametrize("find", [domainnet.find, domainnet.find10])
def test_usual_refusals(tmp_path: Path, find: Find) -> None:
    check_usual_refusals(find, tmp_path, domainnet.DOMAINS)
    write(tmp_path, domain="sketch")
    message = refusal(find, tmp_path, "real")
    assert "real_train.txt" in message and message.endswith(" there: sketch")


def test_missing_class_of_the_ten_is_refused(tmp_path: Path) -> None:
    write(tmp_path, CLASSES10[:8])
    message = refusal(domainnet.find10, tmp_path, "clipart")
    assert message == "clipart train of domainnet10 has 8 classes, not 10; none of wine_glass, zebra"


def test_list_without_images_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "clipart_train.txt"
    path.write_text("clipart/ant/1.jpg 6\n")
    assert (
        refusal(domainnet.find, tmp_path, "clipart")
        == f"{path} is there, but not the images clipart/<class>/ that it names"
    )


def test_images_that_are_not_there_are_counted_and_named(tmp_path: Path) -> None:
    path = write(tmp_path)
    (tmp_path / "clipart" / "bird" / "0001.jpg").unlink()
    for file in (tmp_path / "clipart" / "zebra").iterdir():
        file.unlink()
    (tmp_path / "clipart" / "zebra").rmdir()
    wanted = f"{path}: 3 of 20 images that it names are not there, first {tmp_path}/clipart/bird/0001.jpg"
    assert refusal(domainnet.find, tmp_path, "clipart") == wanted == refusal(domainnet.find10, tmp_path, "clipart")


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("clipart/bird/0000.jpg", "line 21 is 'clipart/bird/0000.jpg'; expected clipart/<class>/<file> <number>"),
        ("clipart/bird/0000.jpg x", "line 21 is "),
        ("sketch/bird/0000.jpg 31", "line 21 is "),
        ("clipart/../bird/0000.jpg 31", "line 21 is "),
        ("bird/0000.jpg 31", "line 21 is "),
        ("clipart/unicorn/0000.jpg 345", "line 21 is of the class unicorn, which is none of DomainNet's 345"),
        ("clipart/bird/0000.jpg 7", "line 21 gives bird the number 7, but before it had 31"),
        ("clipart/ant/0000.jpg 31", "line 21 gives ant the number 31, but before bird had it"),
    ],
)
def test_bad_line_is_refused_by_number(tmp_path: Path, line: str, wanted: str) -> None:
    path = write(tmp_path)
    path.write_text(f"{path.read_text()}{line}\n")
    assert refusal(domainnet.find, tmp_path, "clipart").startswith(f"{path}: {wanted}")


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe\x00"])
def test_empty_or_broken_list_is_refused(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path)
    path.write_bytes(content)
    assert refusal(domainnet.find, tmp_path, "clipart").startswith(f"{path}: ")
