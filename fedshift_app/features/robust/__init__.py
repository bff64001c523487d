"""An average that one node cannot spoil (``aggregation.robust``)."""
