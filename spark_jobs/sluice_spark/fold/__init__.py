"""The changes of one window reduced to one net change per row. Pure."""
