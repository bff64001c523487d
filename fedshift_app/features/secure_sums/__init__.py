"""Sums over nodes of which the server sees no part (``federation.secure_sums``)."""
