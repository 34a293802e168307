"""What the benchmarks share: the measured objects, the timing, and the stored rows."""
