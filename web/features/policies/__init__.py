"""Tube policies: set, removed and previewed at run time."""
