"""What operators do with a pipeline: set it up, check it, look after its slot and its spool."""
