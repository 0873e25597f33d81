"""The kernel families: one module per family, and the declarations that they share."""
