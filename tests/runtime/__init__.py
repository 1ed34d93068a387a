"""The process itself: log and threads."""
