"""Scores finished models on nodes without training, side by side: saved models and runs' models."""
