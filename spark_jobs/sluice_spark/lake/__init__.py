"""Delta tables: their log, their commits, their columns and the statements that change them."""
