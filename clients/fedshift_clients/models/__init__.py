"""Networks of the papers, each split into an encoder and a classifier."""
