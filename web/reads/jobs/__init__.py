"""Jobs as the dashboard reads them: bodies, lists and queries."""
