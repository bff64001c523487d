"""The node's copy of the public images (``dataset.public``)."""

from fedshift_clients.features import About, Metrics, NodeFeature
from fedshift_core.wire.names import NUM_PUBLIC, PUBLIC


class PublicSetOnNode(NodeFeature):
    """Says which copy the node has."""

    def introduce(self, about: About) -> tuple[Metrics, dict[str, str]]:
        """Return the number of its images and its SHA-256, where the method uses it."""
        if about.public is None:
            return {}, {}
        digest, number = about.public
        return {NUM_PUBLIC: number}, {PUBLIC: digest}
