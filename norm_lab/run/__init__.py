"""A run, and the records of it."""
