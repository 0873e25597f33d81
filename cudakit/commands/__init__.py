"""The command line: one module per command, and the code that the examples share with the commands."""
