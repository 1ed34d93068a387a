"""The journal in a PostgreSQL database, shared by the servers of a cluster."""
