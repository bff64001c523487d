"""The laboratory: grids of runs, tables of their numbers, pages."""
