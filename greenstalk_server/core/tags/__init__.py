"""Tags of jobs: idempotency keys, groups and concurrency keys. Pure."""
