"""Checks of images before training."""
