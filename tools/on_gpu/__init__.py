"""``scripts/gpu.sh``: one command that checks, measures and trains on a GPU.

Only the standard library is imported here. What needs torch runs in a process of its own, so that
a part that fails or takes too long costs no other part.
"""
