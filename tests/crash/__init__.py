"""Crash tests: a server under load is killed at a random moment, and the restarted one is audited."""
