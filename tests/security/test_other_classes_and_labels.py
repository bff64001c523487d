"""A server names other classes, another table of labels or other patients, so that other images would be behind."""

from pathlib import Path

import own_sites
from flwr.app import Message, MessageType
from real_node import AppOfNode

from fedshift.site.deploy.exporting import NodeFolder
from fedshift_core.wire import names

FIRST = "dataset.classes=[bar,cross,disc] dataset.size=32 dataset.domains=[north] train.epochs=1 model.name=cnn"


def asked(folder: Path, given: str) -> Message:
    """Return the answer of a node to the question of what it is, in a run of its own."""
    of = {"dataset": "folders", "data-dir": str(folder)}
    return AppOfNode(NodeFolder(folder, "north", 0), f"{FIRST} {given}", dataset=of).ask(MessageType.QUERY)


def test_a_run_with_other_images_behind_its_numbers(tmp_path: Path) -> None:
    own_sites.write(tmp_path, ("north",), 90)
    first = asked(tmp_path, "")
    assert not first.has_error(), first.error.reason
    for other in (
        "classes=[cross,bar,disc]",
        "classes=[bar,cross]",
        "labels=other.csv",
        "patients=listed",
        "test_share=0.3",
        "seed=1",
        "skip_broken=true",
    ):
        reply, key = asked(tmp_path, f"dataset.{other}"), other.partition("=")[0]
        assert reply.has_error() and reply.error.code == names.DECLINED
        assert f"dataset.{key}" in reply.error.reason and "allowed is" in reply.error.reason
