"""Differential fuzzing of the simulated device: random but valid PTX, run there and on a GPU in one process.

`catalogue` lists the forms of instructions, `operands` makes their values, `runner` runs forms on a device and holds
two results against each other, `bounds` says how far approximate instructions may be off, `programs` makes random
programs, `shrink` makes what differs small, `table` keeps the explanations and writes the table. From the repository's
root:

    python -m tests.differential --json profiles/h200/conformance.json
"""
