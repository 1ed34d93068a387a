"""Sign-in and sessions."""
