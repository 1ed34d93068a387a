"""The endpoints of tubes."""
