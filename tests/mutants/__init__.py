"""Mutants of real PTX: texts with one to three changes, for the simulated device's front end and for ptxas.

``python -m tests.mutants`` loads many of them. A mutant must load or raise ``PtxError``. If ptxas is installed, the two
verdicts are compared.
"""
