"""The checks of memory accesses: races, uninitialised memory, freed memory."""
