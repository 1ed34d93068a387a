"""Build the image of deploy/Dockerfile: `make image`. Resolve what it installs: `make requirements`."""
