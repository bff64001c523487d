"""Clipping and noise on what leaves a node (``privacy.name``)."""
