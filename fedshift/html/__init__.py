"""What all HTML pages share: theme, figures as SVG, names in figures."""
