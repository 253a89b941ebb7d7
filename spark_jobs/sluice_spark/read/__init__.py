"""Changes of one window, from segments to Arrow tables."""
