"""Benchmarks of checked results, timing, and the peers measured in the same run."""
