"""Changes to the queue, shared by the pages and the API, with their audit log."""
