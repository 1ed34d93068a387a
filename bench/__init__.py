"""The benchmark: ours against beanstalkd, in turns, on loopback. See README.md."""
