"""Configuration: definitions of the options, the command line, the environment and the configuration file."""
