"""The framework of the API: endpoints, request parsing, schemas, and the OpenAPI document. See README.md."""
