"""From instructions to Python: one builder per instruction family."""
