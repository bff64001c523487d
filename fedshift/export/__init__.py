"""The model out of a run: saved in a form that others can load, completed on a node, and used on images."""
