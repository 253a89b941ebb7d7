"""Text to typed Arrow columns, one module per family of types."""
