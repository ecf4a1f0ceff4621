"""Every use of Flower that its authors do not promise to keep, each with its reason; the rest of the code has none."""
