"""Tests: core transcripts and codecs without sockets, conformance beside a real beanstalkd, and the real command."""
