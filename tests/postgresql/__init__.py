"""The journal in PostgreSQL, against real servers of it."""
