"""What composes with every method, on the node: one class each."""
