"""The modules that all pages and endpoints use: requests, fields, texts, templates, errors, and the API framework."""
