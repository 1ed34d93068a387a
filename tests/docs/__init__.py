"""The pages of docs/: every command in them runs as written, and prints what the page shows."""
