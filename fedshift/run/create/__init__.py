"""``fedshift new-method`` and ``new-plugin``: a method of your own to begin with, with its test."""
