"""The website of the documentation: `make site` builds it, and `make test-site` checks it."""
