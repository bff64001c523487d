"""Local training: the one loop and what it needs."""
