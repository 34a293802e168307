"""Checkpoints after training: average, fold, repair."""
