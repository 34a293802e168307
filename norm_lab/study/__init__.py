"""Compares the arms of a study over seeds, and tunes them."""
