"""What every local page needs: who may see it, templates, a server."""
