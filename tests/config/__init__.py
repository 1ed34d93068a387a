"""Parsing of options: command line, environment, configuration file, and the command `config`."""
