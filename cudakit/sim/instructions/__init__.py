"""Translation of PTX instructions to Python: one builder per kind of instruction."""
