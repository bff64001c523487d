"""Options that compose with every method: a room for each, with its server half and its node half."""
