"""From CUDA C++ to machine code: NVRTC, the headers it reads, and the disk cache."""
