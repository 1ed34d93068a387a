"""The failed jobs of a tube, grouped by their errors."""
