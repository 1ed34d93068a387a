"""Build both distributions of this project into dist: `make dist`."""
