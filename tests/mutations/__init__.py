"""Mutations: changes to kernels, checks and benches that the tests without a GPU must detect.

    python -m tests.mutations --jobs 16 --json mutations.json

Not collected by pytest. Drawn mutations come from a seed (`draw.py`); named ones are errors that tests once missed
(`named.py`). Each is applied to a copy of the tree (`trees.py`), in which the tests that could detect it (`groups.py`)
run. A survivor needs a new test, or an entry in `equivalent.json` with the reason why it changes no behaviour.
"""
