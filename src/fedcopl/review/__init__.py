"""`fedcopl review`: a page where a site's expert checks the labels."""
