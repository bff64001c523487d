"""The inline engine: a run without Flower's runtime, in one process or several."""

NAME = "inline"  # of the engine, whatever the number of its processes; here, as importing the engine imports torch
