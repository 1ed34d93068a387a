"""The runtime of the process: log and threads."""
