"""Durability: codecs proof against any bytes, and directories that real servers wrote."""
