"""``fedshift rescore``: scores the models of finished runs with other settings, without training."""
