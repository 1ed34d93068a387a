"""Tests of Greenstalk Server.

In the tests, the garbage collector tracks jobs. In a server it does not, so a discarded table of jobs is never freed
(see core.gc_untrack). Tests discard thousands of tables: without tracking, the process would grow to gigabytes, and
each full collection would take seconds.
"""

import sys
from types import ModuleType, SimpleNamespace
from typing import cast

import greenstalk_server.core

NO_OP = SimpleNamespace(untrack=lambda each: None)

greenstalk_server.core._untrack = sys.modules["greenstalk_server.core._untrack"] = cast(ModuleType, NO_OP)  # type: ignore[attr-defined]
