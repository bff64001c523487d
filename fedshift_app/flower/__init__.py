"""Adapters to parts of Flower that it does not export."""
