"""Scores of the nodes' own models right after local training (``evaluate.client_models``)."""
