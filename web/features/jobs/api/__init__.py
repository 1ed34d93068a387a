"""The endpoints of jobs."""
