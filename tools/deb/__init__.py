"""Build the Debian package from the wheels in dist: `make deb`."""
