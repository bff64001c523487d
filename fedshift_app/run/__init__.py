"""A run: its folder, its checkpoints, its scores, how it stands, and how it goes on."""
