"""The CUDA driver API on the simulated machine."""
