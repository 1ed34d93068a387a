"""Run the workers and producers of docs/clients-*.md against this server and beanstalkd: `make test-clients`."""
