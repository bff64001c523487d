"""Exports the model of a run, completes it on a node, and predicts images with it."""
