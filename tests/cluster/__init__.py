"""Several processes that serve one queue."""
