"""The command line: one module per command, and the parts that examples share with it."""
