"""What commands share: errors in one line, and files that are written whole."""
