"""The dashboard: a Flask app that shows and changes a broker of the same process."""
