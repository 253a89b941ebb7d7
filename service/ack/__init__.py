"""What we may tell the server. Pure."""
