"""The first ring: the broker as transcripts with fake time; no socket, no sleep."""
