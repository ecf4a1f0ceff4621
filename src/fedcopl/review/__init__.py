"""`fedcopl review`: an expert checks the labels of images."""
