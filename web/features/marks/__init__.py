"""Marks in charts: deploys, pauses, changes of policies, starts and takeovers."""
