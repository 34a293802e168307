"""Runs the stages of runs, here or on Slurm, and records their state."""
