"""Kernels for programs without cudakit or a compiler: fat binaries, a C header with typed launchers, a C++ example."""
