"""Images of several domains as uint8 arrays; splits; who holds which domain. Knows nothing of Flower."""
