"""The kernel families.

A family is in the module of its name; small families that share their kernels are together in `unary`, `reduce` and
`random`. Kernel folders (`kernels/NAME`) and strategies (`cudakit.testing.NAME`) have the module's name. Larger modules
keep apart: NAME_problem, the problem and what is refused; NAME_ladder, the rungs and their launches; NAME_host, inputs,
references and the plain algorithm. All share `variant` (declarations), `checks` (refusals), `axes` and `rows` (how
arrays are walked) and `front` (whose arrays they are).
"""
