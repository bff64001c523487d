"""The node half of each method."""
