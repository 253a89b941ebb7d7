"""Values to typed Arrow columns: one module per family of types, with its text and its binary reader."""
