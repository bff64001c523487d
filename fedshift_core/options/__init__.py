"""Sections of a configuration that both sides of a feature read."""
