"""A command line for any beanstalk server: Greenstalk Server or beanstalkd.

It uses the beanstalk protocol and the JSON API, and imports nothing from the daemon. `Settings.open_queue` chooses
between the two.

Modules, lowest layer first:

errors, address, units, text, interrupt, keyboard, tls, bounded_socket    no knowledge of jobs
named_servers                           the entries of configuration files
queue                                   names, limits and types that `server` and `api` share
server                                  one connection over the protocol
http_client, api                        the JSON API over one HTTP connection
transfer, bulk, follower, snapshot      moving jobs one by one, tasks of the server, new jobs, rates
runner                                  a command of the system for each job of a worker
table, columns, output                  tables that fit the terminal, JSON, questions, progress
settings, params, selection, job_action what commands share: options, argument types, job selection, reports
watching                                commands that --watch repeats
commands                                one module for each command
cli                                     the command group, and the mapping of errors to exit codes
"""
