"""Soak test: a server under mixed load of real clients for hours, and an audit of all jobs. See docs/testing.md."""
