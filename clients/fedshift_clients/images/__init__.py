"""Images on the way into a network: augmentation and normalisation of batches."""
