"""What commands share: one-line errors, and files that are written atomically."""
