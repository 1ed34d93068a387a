"""The commands, by noun. Each is a small function that a `click` decorator turns into a command; cli.py lists them."""
