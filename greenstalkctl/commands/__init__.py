"""One module for each command, or for a few related ones.

A command is a small function with a `click` decorator; cli.py lists the commands.
"""
