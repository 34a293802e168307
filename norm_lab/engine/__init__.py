"""Run the stages of runs, here or on Slurm, and record their state."""
