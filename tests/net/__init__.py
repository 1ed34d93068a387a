"""The third ring: real sockets to the real process."""
