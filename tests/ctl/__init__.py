"""greenstalkctl with real servers: Greenstalk Server, and Debian's beanstalkd."""
