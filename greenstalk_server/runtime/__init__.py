"""The process: clock, threads, exit codes, log, privileges and garbage collector."""
