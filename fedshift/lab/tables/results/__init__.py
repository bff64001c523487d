"""Finished runs as tables see them: loading, metrics, statistics over seeds, archive, groups."""
