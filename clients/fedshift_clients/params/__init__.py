"""What a run may set of the nodes' side of methods, modules and adaptations. No torch: each command reads it."""
