"""Sums over nodes of which the server sees no part: keys, shares, masks and whole numbers (SecAgg+)."""
