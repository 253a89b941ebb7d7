"""Units to the store, the manifest and the acknowledged position."""
