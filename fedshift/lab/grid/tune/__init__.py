"""A search of equal budget for every method, by validation images only."""
