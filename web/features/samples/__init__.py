"""Job templates (`Sample` in the code)."""
