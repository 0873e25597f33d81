"""The kernel families.

Each family is in the module of its name; small families that share kernels are grouped in `unary`, `reduce` and
`random`. Kernel folders (`kernels/NAME`) and strategies (`cudakit.testing.NAME`) have the module's name. Longer
families are split into several modules: NAME_problem, the problem and the checks of its arguments; NAME_ladder, the
variants and their launches; NAME_host, inputs, references and the algorithm on the host. All are declared by the public
names of `cudakit.family`, and share `axes` and `rows`, which compute how a kernel walks its arrays.
"""
