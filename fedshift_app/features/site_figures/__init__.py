"""Metrics of each site with 95 % intervals (``evaluate.site_figures``)."""
