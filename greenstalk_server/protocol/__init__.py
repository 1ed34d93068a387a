"""The beanstalk protocol without I/O: bytes to commands, commands to the broker, replies to bytes."""
