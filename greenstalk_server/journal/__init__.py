"""The journal on disk: its format, writer, recovery, checks, archives, and the import of beanstalkd's binlog."""
