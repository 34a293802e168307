"""The fused forms, a file a family: rows, pointwise, and the norms over positions.

A family's file holds its autograd function and the norms that are made of it.
"""
