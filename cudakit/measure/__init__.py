"""Benchmarks: check results, time them, and compare them with ceilings and peers measured in the same run."""
