"""The deletions of the last day, which can be undone."""
