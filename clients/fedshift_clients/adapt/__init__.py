"""What happens on a node between the weights and the score, over any training method."""
