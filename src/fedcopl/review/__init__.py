"""`fedcopl review`: a local page where a site's expert looks at the labels of its images, and what comes of it."""
