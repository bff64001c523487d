"""Starts and watches runs and SuperLinks; makes credentials; prints states."""
