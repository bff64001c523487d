"""The inline engine: a run without Flower's runtime, in one process or several."""
