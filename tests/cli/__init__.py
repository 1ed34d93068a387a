"""The command as users run it: start, stop, exit codes, `config --check` and `journal`."""
