"""greenstalk_client against this server and against Debian's beanstalkd."""
