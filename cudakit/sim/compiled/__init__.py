"""Kernels as machine code, through llvmlite: the results and counts of the interpreter, in less time."""
