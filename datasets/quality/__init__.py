"""What there is to know of images before anybody trains on them."""
