"""What the owner of a real node looks at and decides, on the node's own machine."""
