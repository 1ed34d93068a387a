"""The endpoints of this server and of the others."""
