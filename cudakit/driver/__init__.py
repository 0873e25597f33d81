"""One driver interface for a GPU and the simulated device, and the contexts and streams on it."""
