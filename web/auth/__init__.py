"""Authentication, authorization, and the proxies in front of the dashboard."""
