"""Real servers, a real database and real clients, while leaders die, stop, are cut off and hand over."""
