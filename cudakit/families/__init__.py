"""The kernel families.

A family is in the module of its name; small families that share their kernels are together in `unary`, `reduce` and
`random`. Kernel folders (`kernels/NAME`) and strategies (`cudakit.testing.NAME`) have the module's name. Larger modules
keep apart: NAME_problem, the problem and what is refused; NAME_ladder, the rungs and their launches; NAME_host, inputs,
references and the plain algorithm. All are declared by the public names of `cudakit.family`, and share `axes` and
`rows` (how arrays are walked).
"""
