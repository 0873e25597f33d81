"""Hopper's instructions on the simulated device, compared with an H200: wgmma, bulk and tensor copies, mbarrier.

`case` has a case: a kernel in PTX, its inputs by seed and its launch. `values` draws operands, `wgmma_forms` and
`wgmma_kernel` have the products, `tensor_maps` the maps of `tensor_copies`, `bulk_copies` and `async_stores` the other
copies, `tensor_map_edits` changed maps, `programs`, `program_walk` and `program_ptx` random mbarrier programs, `facts`
experiments whose results are text, `runner` runs cases on a device (`isolated`: in processes that a fault may end),
`recording` keeps an H200's results, `table` adds the groups to the table of conformance.
From the repository's root:

    python -m tests.hopper --record tests/data/hopper_h200.npz
"""
