"""One line where engine=inline would be much faster, by a rule; and none elsewhere."""

import pytest

from fedshift.data.checking import check_data
from fedshift.launch import advice
from fedshift_app.config.resolving import resolve

MANY = "federation.participation=0.05 train.epochs=1 model.name=cnn"


def advice_for(nodes: int, images: float, more: str = "") -> str:
    return advice.faster_inline(resolve({"experiment": "handwritten", "set": f"{MANY} {more}"}), nodes, images)


def test_many_clients_with_a_small_network_and_few_images_are_told_of_it() -> None:
    line = advice_for(1000, 35.6)
    assert line.startswith("hint: 50 clients a round, each with a small network and 36 images to pass, wait for")
    assert "engine=inline would be much faster" in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("nodes", "images", "more"),
    [
        (300, 36, ""),  # 15 clients a round
        (1000, 501, ""),
        (1000, 36, "train.epochs=20"),
        (1000, 36, "model.name=resnet10"),
        (1000, 36, "model.per_node=[cnn,resnet10] method.name=fedproto"),
    ],
)
def test_others_are_not(nodes: int, images: float, more: str) -> None:
    assert advice_for(nodes, images, more) == ""


def test_the_check_of_the_data_counts_the_images_of_a_node() -> None:
    config = resolve({"experiment": "handwritten", "set": "allocation.share=0.1 dataset.domains=[scan,sketch]"})
    assert 30 < check_data(config, 2) < 40  # a tenth of each domain's 360
