"""A server asks for scores of samples of a node's test images that differ by one, which would tell that image."""

from flwr.app import MessageType
from guarded_node import Owner, refused, run, scored
from real_node import AppOfNode

from fedshift.site.deploy.exporting import NodeFolder


def test_two_samples_that_differ_by_an_image_in_two_runs(folder: NodeFolder, policy: Owner) -> None:
    number = scored(run(folder))["count/scan"]  # all of them are no secret: enough others are left

    def sampled(size: int, **owner: str) -> AppOfNode:
        return run(folder, f"images.eval_batch=1 evaluate.fraction={size / number}", **owner)

    assert scored(sampled(20), drawn=[20])["count/scan"] == 20
    for _ in range(2):  # also after a restart, under another run
        reason = refused(sampled(21), MessageType.EVALUATE, domains=["scan"], drawn=[21])
        assert reason.startswith("evaluate.fraction, as test images=21, allowed is 20")
    stated = policy(partition={"test_images": {"scan": 30}})  # the owner may state another size
    assert scored(sampled(30, policy=stated), drawn=[30])["count/scan"] == 30
    assert "allowed is 30" in refused(sampled(20), MessageType.EVALUATE, domains=["scan"], drawn=[20])
