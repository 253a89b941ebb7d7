"""What a lake table holds at one position of the source, as hashes that the source can compute too."""
