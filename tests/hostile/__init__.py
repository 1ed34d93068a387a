"""Clients that flood, stall, or make the server work: others are served, and resources are freed."""
