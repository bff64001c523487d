"""A Flower app of one's own with a strategy and a client of FedShift."""
