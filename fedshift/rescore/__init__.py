"""``fedshift rescore``: the models of finished runs, scored again in other ways; nothing is trained."""
