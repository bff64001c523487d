"""Counts behind recall, precision, AUC and calibration (``evaluate.figures``)."""
