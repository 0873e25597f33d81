"""The driver API over the simulated machine."""
