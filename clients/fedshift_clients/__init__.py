"""The node side: models, losses, the one training loop. Uses torch; never imports ``strategies``."""
