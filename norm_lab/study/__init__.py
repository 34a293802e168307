"""Compare the arms of a study over seeds, and tune them."""
