"""Tasks over the API: searches and bulk changes."""
