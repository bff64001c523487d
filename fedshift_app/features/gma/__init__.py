"""Masks by the agreement of the nodes' signs (``aggregation.gma_tau``)."""
