"""The passes on a CUDA device, in Triton."""
