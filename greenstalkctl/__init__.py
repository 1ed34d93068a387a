"""A command line for any beanstalk server, ours or the original. It knows the protocol, and nothing of the daemon.

From below: exits, address, text, interrupt, keyboard; server (one connection, and what the other end can do); transfer,
follower and pulse (many jobs, new jobs, rates); output, settings, params, selection, deed (what commands share);
commands, a noun each; cli (the group, and errors to exit codes).
"""
