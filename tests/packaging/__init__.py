"""The wheel that users install, and its dependencies."""
