"""What the benchmarks share: what is measured, how, and the rows that keep it."""
