"""A package outside FedShift's folders: one method, one data set, one network, one feature."""
