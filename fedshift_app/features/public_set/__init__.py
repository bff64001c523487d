"""One copy of the public images on all nodes (``dataset.public``)."""
