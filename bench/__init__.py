"""Benchmark of Greenstalk Server against beanstalkd, in turns, on loopback. See README.md."""
