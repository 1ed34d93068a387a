"""The page of the history, and its charts."""
