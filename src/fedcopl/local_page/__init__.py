"""Local pages: access control, templates and a server."""
