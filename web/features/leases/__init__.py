"""Leases: jobs reserved over HTTP."""
