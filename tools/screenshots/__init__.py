"""Screenshots of the dashboard over a scene that looks like real work."""
