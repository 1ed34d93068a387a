"""One tube: its ready, delayed and buried jobs, and sets of tubes that clients watch together. Pure."""
