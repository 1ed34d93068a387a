"""A client for Greenstalk Server's protocol extensions, and a worker loop, on top of PyPI's `greenstalk`.

    Client      greenstalk.Client with the commands and tags of docs/protocol-extensions.md
    work        reserve jobs and run a handler for each, until SIGTERM or SIGINT
    Worker      the same without signals, for programs that have a main loop of their own

`work` and `Worker` serve plain beanstalkd too. `Client` has all of greenstalk's methods on any server, and raises
greenstalk.UnknownCommandError where a server lacks an extension.
"""

from greenstalk_client.client import (
    AlreadyReservedError,
    BatchResult,
    BodyDecodeError,
    Client,
    CommandTooLongError,
    Job,
    JobMeta,
    PutId,
)
from greenstalk_client.worker import Bury, Release, Worker, work

__all__ = [
    "AlreadyReservedError",
    "BatchResult",
    "BodyDecodeError",
    "Bury",
    "Client",
    "CommandTooLongError",
    "Job",
    "JobMeta",
    "PutId",
    "Release",
    "Worker",
    "work",
]
