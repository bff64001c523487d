"""A grid of runs, one after another or side by side."""
