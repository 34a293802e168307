"""Checkpoints after training: average, fold, re-estimate running statistics, repair."""
