"""The overview and the pages of tubes."""
