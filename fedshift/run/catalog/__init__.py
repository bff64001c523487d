"""Lists and describes methods, data sets, networks and experiments; completes them in shells."""
