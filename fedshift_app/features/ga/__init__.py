"""Weights of nodes by generalisation gaps (``aggregation.weights=ga``)."""
