"""The check of our English: phrases that make a reader stop, in pages, docstrings, comments and messages.

    python -m tests.prose                       every finding, by file and line
    python -m tests.prose cudakit/launch docs   only in these files and folders
    python -m tests.prose --count               findings per phrase, and how many sentences were read
    python -m tests.prose --draw 40 --seed 7    sentences drawn at random, to be read by a person

`phrases.py` is the list with its exceptions. A text without findings is not yet a good text: the draws are for that.
"""
