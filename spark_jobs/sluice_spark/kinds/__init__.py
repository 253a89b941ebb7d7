"""Kinds of lake tables: what a table holds, as one object for each kind."""
