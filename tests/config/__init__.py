"""Options as values: command line, environment, configuration file, and the command `config`."""
