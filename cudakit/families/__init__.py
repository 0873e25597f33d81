"""The kernel families.

Each family is in the module of its name; small families that share kernels are grouped in `unary`, `reduce` and
`random`. Kernel folders (`kernels/NAME`) and strategies (`cudakit.testing.NAME`) have the module's name. Longer
families are split into several modules: NAME_problem holds the problem and checks its arguments; NAME_ladder holds the
variants and their launches; NAME_host holds the inputs, the reference and the algorithm on the host. All families are
declared with the public names of `cudakit.family`. They share `axes` and `rows`, which compute the order in which a
kernel traverses its arrays.
"""
