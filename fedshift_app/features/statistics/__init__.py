"""Statistics of the nodes' images, reported once (``statistics.share``)."""
