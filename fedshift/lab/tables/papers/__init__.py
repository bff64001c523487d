"""The papers' printed tables: rows, deviations of a run from a printed row, open values."""
