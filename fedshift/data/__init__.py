"""A user's images before a run: init, prepare, preview, checks."""
