"""Parameters of modules and adaptations. No torch: each command reads them."""
