"""Helpers of all commands, and the checks of norms and placements."""
