"""Tuning: the search for the fastest configuration of a family's variants, on one shape."""
