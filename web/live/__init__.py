"""Live pages by server-sent events."""
