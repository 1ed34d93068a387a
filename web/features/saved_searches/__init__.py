"""Saved searches: queries under a name."""
