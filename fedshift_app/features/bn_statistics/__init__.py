"""Scores with other statistics of BatchNorm (``evaluate.bn``)."""
