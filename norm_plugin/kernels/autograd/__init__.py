"""Fused norms as differentiable functions: rows, columns and single entries."""
