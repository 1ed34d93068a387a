"""Reads that pages, API, live updates and exports share: tubes, jobs, connections and policies."""
