"""What a run is: the sections of its configuration, where they come from, and the methods by name."""
