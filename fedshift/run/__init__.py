"""From keys to a finished run folder: the inline engine, Flower's simulation, progress, what can be run."""
