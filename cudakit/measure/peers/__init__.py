"""What others offer for the same work, timed beside ours in the same run: cuBLAS, CuPy, torch and Triton, if installed.

A peer works on our arrays, without a copy, and on our stream, so the code that checks and times our kernels checks and
times it too.
"""
