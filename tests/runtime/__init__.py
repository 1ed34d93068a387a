"""The process itself: its log."""
