"""Which test images of real nodes were not scored (``evaluate.test``)."""
