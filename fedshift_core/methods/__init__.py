"""The parameters of the nodes' side of methods. No torch: each command reads them."""
