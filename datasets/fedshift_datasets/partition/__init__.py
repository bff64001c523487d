"""Who holds which images: nodes, and their training, validation and test parts."""
