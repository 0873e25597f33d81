"""From a loaded module to a running kernel: signatures, arguments, limits and launch plans."""
