"""Does the lake equal the source? Asked at one position of both."""
