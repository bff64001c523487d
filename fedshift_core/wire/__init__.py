"""What travels between server and nodes: names, records, counts, packing."""
