"""Tasks of an operator on the dashboard, timed in a real browser."""
