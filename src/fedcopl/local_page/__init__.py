"""Pages on this machine: access control, templates and a server."""
