"""One job: its fields, its attributes and history, and the tables and indexes of jobs. Pure."""
