"""What the papers say, and what our studies say to it: pages, tables and measurements.

No part of the product: nothing in ``norm_plugin`` or ``norm_lab`` imports it.
"""
