"""Mutations: changes of kernels, judges and benches that the tests without a GPU must notice.

    python -m tests.mutations --jobs 16 --json mutations.json

Not collected by pytest. Drawn mutations come from a seed (`draw.py`); named ones are errors that once went unnoticed
(`named.py`). Each is made in a copy of the tree (`trees.py`), and the tests that could notice it (`groups.py`) run
there. A survivor needs a test, or an entry in `equivalent.json` with the reason why it changes no behaviour.
"""
