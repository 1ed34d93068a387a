"""Coverage-guided fuzzing: the wire and the core, journals, beanstalkd's files, archives. See docs/testing.md."""
