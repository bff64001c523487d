"""What this machine is, what is wrong with it, and what Flower Hub would refuse."""
