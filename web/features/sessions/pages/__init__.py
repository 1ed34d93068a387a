"""The pages of sign-in, and the list of sessions."""
