"""Pages of runs: reports, pictures."""
