"""One partition of a real node's images for good, under a policy that asks for more than one image behind a number.

Numbers over two sets of images that differ by one tell that image. So orders come from a secret of the owner's, in the
ledger, and everything a run may say of which images are behind an answer is kept from the first run that says it
(:class:`fedshift_app.node.policy.Partition`). A run that says otherwise is refused, until the owner writes the new
value into the policy's section ``partition``.
"""

from collections.abc import Mapping
from typing import Any

from fedshift_app.config.sections import RunConfig
from fedshift_app.node import ledger
from fedshift_app.node.data import own_images, test_images, uncorrupted
from fedshift_app.node.ledger import Book, Ledger
from fedshift_app.node.place import Guard, Place, PolicyError
from fedshift_app.node.policy import Partition, Policy
from fedshift_core.limits import as_found
from fedshift_core.wire.names import BN_IMAGES, DOMAINS, DRAWN


def guard(allowed: Policy, own: Ledger) -> Guard | None:
    """Return the owner's hold on sets of images; None where a number may be of one image.

    Raises:
        FedShiftError: If the ledger cannot be read or written.
    """
    if allowed.least_images == 1:
        return None
    secret = own.read().secret
    if not secret:
        own.change(lambda book, now: book.model_copy(update={"secret": book.secret or ledger.new_secret()}))
        secret = own.read().secret
    return Guard(allowed.least_images, int(secret, 16), allowed.weights == "masked")


def pinned(allowed: Policy, own: Ledger, config: RunConfig, where: Place, record: Mapping[str, Any]) -> str:
    """Keep what a message says of which images are behind its answers; return why it is refused, empty where not.

    Args:
        allowed: The owner's policy, whose section ``partition`` comes first.
        own: The node's ledger.
        config: The run's configuration.
        where: The node.
        record: The message's ``config``.

    Raises:
        FedShiftError: If the ledger cannot be read or written.
        PolicyError: If a sample or its rest would have too few images.
    """
    if where.guard is None:
        return ""
    wanted = _asked(config, where, record)
    return own.change(lambda book, now: _held(allowed.partition or Partition(), book, wanted))


def _held(stated: Partition, book: Book, wanted: Partition) -> Book | str:
    """Return the book with what is kept of the images' parts, or what differs from that."""
    kept = book.partition | stated.stated()
    for name, value in wanted.stated().items():
        if kept.setdefault(name, value) != value:
            key = Partition.key_of_run(name.partition(".")[0])
            return (
                f"{key}={as_found(value)}, allowed is {as_found(kept[name])}: this node's images are parted once for "
                f"good (partition.{name} of its owner's policy)"
            )
    return book.model_copy(update={"partition": kept})


def _asked(config: RunConfig, where: Place, record: Mapping[str, Any]) -> Partition:
    """Return what a message says of which images are behind its answers."""
    data, assigned = config.dataset, dict[str, Any]()
    if BN_IMAGES in record:
        images = len(own_images(config, where).train)
        assigned["bn_images"] = _size(int(record[BN_IMAGES]), images, where, "training") or None
    sizes: dict[str, int] = {}
    for domain, drawn in zip(record.get(DOMAINS, ()), record.get(DRAWN, ()), strict=False):
        images = len(test_images(uncorrupted(config), where, domain))
        if size := _size(int(drawn), images, where, "test"):
            sizes[domain] = size
    if config.statistics.image_share > 0:
        assigned["image_share"] = config.statistics.image_share
    own = data.source()
    assigned |= {name: getattr(own, name) for name in Partition.model_fields if hasattr(own, name)}
    assigned |= {"classes": data.known().classes, "split_seed": own.seed, "data_set": data.kind}
    return Partition(
        validation_fraction=config.allocation.validation_fraction,
        test_images=sizes or None,
        **assigned,
    )


def _size(asked: int, images: int, where: Place, of: str) -> int:
    """Return the size of a sample; 0 of all images.

    Raises:
        PolicyError: If it has too few images, or leaves too few.
    """
    if asked >= images:
        return 0
    if min(asked, images - asked) < where.least_images:
        few = "would be in a sample" if asked < where.least_images else "would be left by a sample"
        raise PolicyError(f"fewer than least_images={where.least_images} {of} images {few}")
    return asked
