"""What every page and endpoint is built from: requests, fields, texts, templates, errors, and the API framework."""
