"""The connections of clients: a list, and single connections with their jobs and tubes."""
