"""Scores on the nodes' validation parts (``allocation.validation_fraction``)."""
