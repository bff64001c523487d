"""What touches Flower where it exports nothing, and a Grid of our own."""
