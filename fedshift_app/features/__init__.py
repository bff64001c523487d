"""What composes with every method: a room for each feature, with its server half and its node half."""
