"""Images normalised by statistics of the nodes (``images.normalization``)."""
