"""Code examples that put and process a first job, for the address of this queue."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Final

UNIX: Final = "unix:"

WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  addresses to connect to instead of a wildcard


@dataclass(frozen=True, slots=True)
class Example:
    """A titled code example."""

    title: str
    code: str


def examples(beanstalk: str) -> tuple[Example, ...]:
    """Return the examples for *beanstalk*, an address as an operator writes it."""
    if beanstalk.startswith(UNIX):
        path = beanstalk.removeprefix(UNIX)
        address, target = repr(path), f"-U {shlex.quote(path)}"
    else:
        host, _, port = beanstalk.rpartition(":")
        host = host.strip("[]")
        host = WILDCARDS.get(host, host)
        address, target = f'("{host}", {port})', f"{host} {port}"
    return (
        Example(
            "Put a job from Python (pip install greenstalk)",
            f'import greenstalk\n\nwith greenstalk.Client({address}) as queue:\n    queue.put("hello")',
        ),
        Example(
            "Process it",
            "import greenstalk\n"
            "\n"
            f"with greenstalk.Client({address}) as queue:\n"
            "    job = queue.reserve()\n"
            "    print(job.body)\n"
            "    queue.delete(job)",
        ),
        Example("Put a job from a shell", f"printf 'put 0 0 60 5\\r\\nhello\\r\\nquit\\r\\n' | nc {target}"),
    )
