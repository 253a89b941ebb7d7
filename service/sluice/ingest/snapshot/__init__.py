"""Initial rows of a table, read as of an exported snapshot."""
