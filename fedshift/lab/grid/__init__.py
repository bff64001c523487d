"""Points to runs to a table: sweep, tune, rescore, evaluate, costs."""
