"""The second ring: bytes in, bytes out, without a socket."""
