"""The dashboard's features. Each has its model, its pages and its endpoints of the API side by side."""
