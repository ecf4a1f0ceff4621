"""A whole federation on one machine: for research, for trying things out, and for the demo."""
