"""Messages to transactions: which rows belong to which commit, in which order. Pure."""
