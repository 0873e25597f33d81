"""The simulated device's counters held against a GPU's, kernel by kernel: global requests and sectors, shared-memory
wavefronts and bank conflicts, branches.

`problems` says what is run and runs it on a device, `hardware` counts it under Nsight Compute, `simulated` on the
simulated device, with the PTX that `compiled` keeps of the GPU's run. `measures` says which counters mean the same,
`explained` keeps the differences that are understood, `table` holds the two against each other. From the repository's
root:

    python -m tests.counters --device gpu --json profiles/h200/counters.json --ptx tests/data/counters_h200.json.xz
"""
