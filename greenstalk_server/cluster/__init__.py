"""Leadership among servers that share one journal."""
