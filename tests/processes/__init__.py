"""Fault tests of --processes: processes of a loaded server are killed and paused, and a history is checked."""
