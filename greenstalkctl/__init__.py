"""A command line for any beanstalk server, ours or the original.

It knows the protocol and the JSON API, and nothing of the daemon. `Settings.reach` decides which way a command goes.

From below: exits, address, units, text, interrupt, keyboard, link (sockets with a deadline), tls; queue (what commands
ask in either way); server (one connection by the protocol, and what the other end can do), channel and api (the same
over HTTP, and more); transfer, task, follower and pulse (jobs one by one, many at once, new ones, rates); table and
columns (what fits a terminal); output, settings, params, selection, deed (what commands share); commands, a noun each;
cli (the group, and errors to exit codes).
"""
