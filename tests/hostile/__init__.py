"""Clients that mean ill or know no better: what others notice, and what is left. See docs/testing.md."""
