"""The pages of docs/: each command runs as written, and prints the output that the page shows."""
