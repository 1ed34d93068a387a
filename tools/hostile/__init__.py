"""The longest iteration of the server's event loop, for each of a list of hostile requests. See ../README.md."""
