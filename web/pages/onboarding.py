"""How to put a first job into an empty queue, for the address it listens on."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Final

UNIX: Final = "unix:"

EVERY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  which are no addresses to connect to


@dataclass(frozen=True, slots=True)
class Example:
    """One way to do it: *code* as it is typed."""

    title: str
    code: str


def examples(beanstalk: str) -> tuple[Example, ...]:
    """Return how a job is put, and worked on, at *beanstalk*, an address as an operator writes it."""
    if beanstalk.startswith(UNIX):
        path = beanstalk.removeprefix(UNIX)
        address, target = repr(path), f"-U {shlex.quote(path)}"
    else:
        host, _, port = beanstalk.rpartition(":")
        host = host.strip("[]")
        host = EVERY_ADDRESS.get(host, host)
        address, target = f'("{host}", {port})', f"{host} {port}"
    return (
        Example(
            "Put it from Python (pip install greenstalk)",
            f'import greenstalk\n\nwith greenstalk.Client({address}) as queue:\n    queue.put("hello")',
        ),
        Example(
            "Then work on it",
            "import greenstalk\n"
            "\n"
            f"with greenstalk.Client({address}) as queue:\n"
            "    job = queue.reserve()\n"
            "    print(job.body)\n"
            "    queue.delete(job)",
        ),
        Example("Or put it from a shell", f"printf 'put 0 0 60 5\\r\\nhello\\r\\nquit\\r\\n' | nc {target}"),
    )
