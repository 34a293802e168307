"""What the commands of the package share, and what ``python -m norm_plugin`` does."""
