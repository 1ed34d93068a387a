"""greenstalkctl against real servers: ours, and Debian's beanstalkd."""
