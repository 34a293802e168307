"""The passes on the CPU, in C++."""
