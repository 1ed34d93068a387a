"""Failover tests: a real database, servers and clients, while leaders die, hang, are cut off and hand over."""
