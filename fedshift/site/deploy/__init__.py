"""Deployments: SuperNodes, keys, the demo, export of nodes."""
