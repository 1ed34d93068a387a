"""Real kills: a server under load from several clients ends at a random moment, and what comes back is audited."""
