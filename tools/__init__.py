"""Programs for developers of the server, which no test runs."""
