"""The gevent side: sockets, TLS, connections, polling, group commit and HTTP requests."""
