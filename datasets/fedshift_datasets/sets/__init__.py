"""The data sets, a module each."""
