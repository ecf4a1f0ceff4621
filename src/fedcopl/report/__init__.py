"""Reports as self-contained HTML pages: of a run, or of several."""
