"""What composes with every method, on the server: one class each."""
