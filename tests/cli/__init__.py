"""The real command: start, stop, exit codes, `config --check` and `journal`."""
