"""Coverage-guided fuzzing of protocol, core, journals, beanstalkd's files and archives; see docs/testing.md."""
