"""Peers: implementations by cuBLAS, CuPy, torch and Triton, timed in the same run as ours, if they are installed.

A peer works on our arrays, without a copy, and on our stream, so the same code checks and times both.
"""
