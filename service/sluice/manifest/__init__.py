"""The log that is the truth: append, follow, reduce to a state, checkpoint."""
