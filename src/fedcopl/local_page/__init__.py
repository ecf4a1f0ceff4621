"""What every local page needs: who may see it, how it is made from templates, and a server for it on this machine."""
