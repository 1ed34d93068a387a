"""This server and the others in the configuration."""
