"""`python -m fedcopl` is the command line."""

from .cli import main

main()
