"""What all HTML pages share: templates with one base, figures as SVG, names in figures."""
