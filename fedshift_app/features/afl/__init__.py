"""Weights of the domains with the largest loss (``aggregation.weights=afl``)."""
