"""Losses for classes of unequal numbers of images (``train.class_weights``)."""
