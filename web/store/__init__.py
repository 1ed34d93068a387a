"""The dashboard's own data: one SQLite file beside the journal, or a table of the journal's database."""
