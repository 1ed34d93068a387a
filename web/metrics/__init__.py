"""Prometheus metrics, and the figures that the visitor may see."""
