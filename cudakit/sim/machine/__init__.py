"""The lockstep machine: loads modules, launches their kernels, and adds up what a launch counted."""
