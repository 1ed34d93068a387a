"""Configuration: definitions of the settings, the command line, the environment and the configuration file."""
