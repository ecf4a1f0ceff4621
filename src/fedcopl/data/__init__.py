"""Where images come from: readers, a cache of pixels, who holds which."""
