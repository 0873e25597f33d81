"""Comparison of the simulated device's counters with a GPU's, per kernel: global requests and sectors, shared-memory
wavefronts and bank conflicts, branches.

`problems` lists the problems and runs them, `hardware` counts under Nsight Compute, `simulated` on the simulated
device, with the PTX of the GPU's run, which `compiled` stores. `measures` defines the figures that both devices have,
`explained` has the known differences, `table` compares and writes the table. From the repository's root:

    python -m tests.counters --device gpu --json profiles/h200/counters.json --ptx tests/data/counters_h200.json.xz
"""
