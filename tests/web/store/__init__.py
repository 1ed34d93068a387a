"""Tests of the dashboard's store."""
