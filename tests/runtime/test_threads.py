"""Blocking calls in the thread pool: results, exceptions, and other greenlets that run during a call."""

from __future__ import annotations

import threading

import gevent
import pytest

from greenstalk_server.runtime.threads import run_in_thread


def test_function_runs_in_another_thread_and_returns_its_result() -> None:
    def add(number: int, *, to: int) -> tuple[int, int]:
        return number + to, threading.get_ident()

    total, thread = run_in_thread(add, 1, to=2)
    assert total == 3
    assert thread != threading.get_ident()


def test_other_greenlets_run_while_a_call_blocks() -> None:
    event = threading.Event()
    setter = gevent.spawn(event.set)
    assert run_in_thread(event.wait, 60.0)
    setter.get()


@pytest.mark.parametrize("error", [FileNotFoundError("journal.1"), ValueError("no number")])
def test_exception_is_raised_to_the_caller_and_not_printed(error: Exception, capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error), match=str(error)) as raised:
        run_in_thread(fail)
    assert raised.value is error
    assert capfd.readouterr().err == ""
