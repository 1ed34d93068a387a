"""What users install: the wheel and its dependencies."""
