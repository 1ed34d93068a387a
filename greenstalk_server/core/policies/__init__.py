"""Policies: their settings, the merged settings of a tube, and the state that they need for a tube. Pure."""
