"""The search for jobs in all tubes."""
