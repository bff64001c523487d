"""The server half of each method."""
