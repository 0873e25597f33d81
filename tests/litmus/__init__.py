"""Litmus tests of memory ordering: outcomes on a GPU and reports of the simulated device against the PTX memory model.

`program` reads a test from text, `catalogue` lists the tests, `model` enumerates the executions that the PTX memory
model allows, `kernels` writes a test as PTX, `runner` runs it on a device, `verdicts` compares the simulated device's
reports with the model's data races, `table` writes the table. From the repository's root:

    python -m tests.litmus --json profiles/h200/litmus.json
"""
