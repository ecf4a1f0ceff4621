"""A whole federation on one machine: for research, and for trying out."""
