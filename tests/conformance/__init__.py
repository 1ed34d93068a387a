"""Conformance: a corpus of conversations is played to our server and to Debian's beanstalkd; replies must be equal.

Theory of operation:

- A conversation (script.py) is data: what each connection sends, and when it reads a reply. It does not contain the
  replies: beanstalkd, "the peer", is the oracle.
- A player (player.py) plays one conversation to one server through real sockets, and returns its transcript.
- normalise.py converts a reply to text that is equal on both sides unless the servers behave differently. Ids and
  counters are relative to the start of the conversation, and values that identify the process or machine are masked.
- The number of a job in its conversation stands for its id: ids.py. With one process, ids must be consecutive.
- differences.py lists the intended differences, each with its reason and our server's replies. An unlisted difference
  fails a test, and so does a listed one that no longer exists.
- test_processes.py plays the corpus to a server with three processes; differences_of_processes.py lists how it differs
  from one process.
- Before each conversation the server is reset to a known state (tests/support/servers.py), so a few processes serve all
  conversations.

No test sleeps to synchronise: a barrier is a round trip on a control connection.
"""
