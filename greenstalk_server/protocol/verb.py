"""The class of the rows of `verbs.VERBS`: what the server knows about a command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from greenstalk_server.protocol.permissions import Permission
from greenstalk_server.protocol.session_state import Command, SessionState

HERE: Final = 0
USED: Final = 1
TUBE: Final = 2
JOB: Final = 3
MANY: Final = 4
RESERVE: Final = 5
"""Routes of commands in a queue of several shards: the process that holds the connection, the shard of the used tube,
the shard of the tube that is the first argument, the home shard of the job whose id is the first argument. For MANY,
and for RESERVE if the client watches tubes of several shards, `front_commands` has a function for the command."""

MAX_LINE: Final = 224
"""Maximum length of a command line in bytes, with its CRLF (protocol.txt, BAD_FORMAT)."""


class Verb:
    """A command, by the verb that its line begins with.

    name            the verb.
    arguments       the words after the verb, as the documentation writes them.
    parse           returns the command in a line; takes the verb and the rest of the line after a space.
    handle          returns the reply to the command, or None if the commands behind it have to wait. It counts a
                    command that has a counter `cmd_...` in `core.counters.COUNTERS`. None: the command has a body, and
                    `Session` serves it.
    permission      what an access rule must grant.
    is_extension    whether beanstalkd does not have the command, so that --strict-protocol turns it off.
    awaits_journal  whether the reply acknowledges a change, or reports on a job. Such a reply waits until all that the
                    journal has promised is safe. Other replies report on the connection, or show counts and lists as
                    they are in memory. A reserve waits only if its job is not safe; see `Journal.reserve`.
    needs_space     False if beanstalkd accepts an argument directly after the verb.
    is_repeated     whether clients repeat its lines unchanged, so that the parsed lines are kept.
    max_line        maximum bytes of the line, with its CRLF.
    route           which shard serves the command; see HERE.
    takes_id        whether an id is the only argument.
    """

    def __init__(
        self,
        name: bytes,
        arguments: str,
        parse: Parser,
        handle: Handler | None,
        permission: Permission,
        is_extension: bool = False,
        awaits_journal: bool = True,
        needs_space: bool = True,
        is_repeated: bool = False,
        max_line: int = MAX_LINE,
        route: int = HERE,
    ) -> None:
        self.name: bytes = name
        self.arguments: str = arguments
        self.parse: Parser = parse
        self.handle: Handler | None = handle
        self.permission: Permission = permission
        self.is_extension: bool = is_extension
        self.awaits_journal: bool = awaits_journal
        self.needs_space: bool = needs_space
        self.is_repeated: bool = is_repeated
        self.max_line: int = max_line
        self.route: int = route
        self.takes_id: bool = arguments == "<id>"


Parser: TypeAlias = Callable[[Verb, bytes], Command]
Handler: TypeAlias = Callable[[SessionState, Command, int], bytes | None]
