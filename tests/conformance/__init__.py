"""Conformance: one corpus of conversations, played to ours and to Debian's beanstalkd, replies compared.

Theory of operation:

- A conversation (script.py) is data: what each of a few connections sends, and when a reply is read. It never
  says what the reply is: beanstalkd, "the peer", is the oracle.
- A player (player.py) plays one conversation to one server through real sockets and returns its transcript.
- normalise.py turns a reply into text that is equal on both sides unless the servers behave differently: ids
  count from the start of the conversation, counters too, and what names the process or machine is masked.
- differences.py is the one place for what differs on purpose, each with its reason and the replies ours must
  give. A listed difference that no longer shows fails, and so does an unlisted one.
- Every conversation leaves its server as it found it (servers.py), so a few server processes serve them all.

Nothing sleeps to synchronise: a barrier is a round trip on a control connection.
"""
