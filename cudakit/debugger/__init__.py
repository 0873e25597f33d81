"""Debugging kernels on the simulated device: breakpoints and values, and who wrote an element of an array."""
