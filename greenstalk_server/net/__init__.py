"""Networking with gevent: sockets, TLS, connections, polling, group commit and HTTP requests."""
