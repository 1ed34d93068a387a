"""The changes of the last day that can be undone."""
