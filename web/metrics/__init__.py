"""Prometheus metrics, and the history of each tube and of the server."""
