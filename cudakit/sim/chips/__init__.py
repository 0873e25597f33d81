"""The limits of each architecture."""
