"""A step of the server after the average (``server.optimizer``)."""
