"""What a set of runs shows: significance, statistics over training, plots, the report."""
