"""Where the time of a round goes (``profile=true``)."""
