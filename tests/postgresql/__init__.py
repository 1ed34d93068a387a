"""Tests of the journal in PostgreSQL with real PostgreSQL servers."""
