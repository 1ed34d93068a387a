"""A client for Greenstalk Server's protocol extensions, and a worker loop, on top of PyPI's `greenstalk`.

    Client      greenstalk.Client with the commands and tags of docs/protocol-extensions.md
    work        reserve jobs and run a handler for each, until SIGTERM or SIGINT
    Worker      the same without signal handlers, for programs with their own main loop

`work` and `Worker` also work with plain beanstalkd. `Client` has all methods of greenstalk.Client on any server, and
raises greenstalk.UnknownCommandError if the server lacks an extension.
"""

from greenstalk_client.client import (
    AlreadyReservedError,
    BatchResult,
    BodyDecodeError,
    Client,
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
    "Job",
    "JobMeta",
    "PutId",
    "Release",
    "Worker",
    "work",
]
