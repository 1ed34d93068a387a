"""A server under mixed load of real clients for long, and an audit of all jobs at its end. See docs/testing.md."""
