"""Differential fuzzing of the simulated device: random but valid PTX, run there and on a GPU in one process.

`catalogue` lists the forms of instructions, `operands` draws their values, `runner` runs forms on a device and compares
two devices' results, `bounds` has the error bounds of approximate instructions, `programs` draws random programs,
`shrink` reduces a program that differs, `explained` has the known differences, `table` writes the table. From the
repository's root:

    python -m tests.differential --json profiles/h200/conformance.json
"""
