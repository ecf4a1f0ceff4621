"""`fedcopl provision`: packages for the sites of a study, and the keys in them."""
