"""The checks of the norms and placements that a user dir registers."""
