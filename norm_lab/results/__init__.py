"""Results of runs: written once a run has finished, and read as one table."""
