"""The party wall: the driver API of a GPU or of the simulated device, and the contexts and streams on it."""
