"""Proofs of a hostile reader: a real pipeline, asked by every surface at once."""
