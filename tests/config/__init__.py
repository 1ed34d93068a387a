"""Options as values: command line, environment, configuration file, and how they are shown."""
