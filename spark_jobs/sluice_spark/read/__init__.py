"""From the manifest's entries to the changes of one window as Arrow tables."""
