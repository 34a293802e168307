"""The fused forms, one file per family: rows, pointwise, and the norms over positions.

A family's file contains its autograd function and the norms that use it.
"""
