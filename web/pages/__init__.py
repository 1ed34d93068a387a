"""The HTML pages and the forms on them."""
