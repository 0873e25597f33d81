"""The lockstep machine: loads modules, launches their kernels, and collects the counters of launches."""
