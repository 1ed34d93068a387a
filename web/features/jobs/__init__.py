"""Single jobs, lists of jobs, and exports."""
