"""Probes that follow the values of kernels: traps, exact indices, and a float64 shadow of each float."""
