"""The process: clock, exit codes, log, privileges, garbage collector."""
