"""Prometheus metrics, and figures as the visitor may see them."""
