"""What there is and what it takes: lists, one thing by name, and what a shell completes."""
