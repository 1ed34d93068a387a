"""The profiler: the stage of a stack, the sampler's output for a program, and the flame graph."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from bench.flame import Node, svg
from bench.sampler import START, STOP
from bench.stacks import PythonStacks, Samples
from bench.stages import Frame, stage_of, stage_of_system_call
from tests.support.processes import ending

SOURCE = """\
data = recv(65536)
out = session.receive(data, clock())
sent = self._sock.send(out)
woken_by = sleep()
"""

HUB = Frame("Hub.run", "/lib/gevent/hub.py", 1)


@pytest.fixture
def server(tmp_path: Path) -> Path:
    package = tmp_path / "greenstalk_server"
    package.mkdir()
    (package / "connection.py").write_text(SOURCE)
    return package


@pytest.mark.parametrize(("line", "stage"), [(1, "recv"), (2, "connection"), (3, "send"), (4, "wait")])
def test_line_of_the_leaf_determines_the_stage(server: Path, line: int, stage: str) -> None:
    assert stage_of((HUB, Frame("Connection.serve", str(server / "connection.py"), line))) == stage


@pytest.mark.parametrize(
    ("path", "stage"),
    [
        ("greenstalk_server/protocol/session.py", "parse"),
        ("greenstalk_server/core/broker.py", "core"),
        ("greenstalk_server/a_new_heap.py", "core"),
        ("greenstalk_server/journal/writer.py", "journal"),
        ("greenstalk_server/journal/postgresql/rows.py", "journal"),
        ("greenstalk_server/net/connection.py", "connection"),
        ("greenstalk_server/net/poller.py", "connection"),
        ("greenstalk_server/net/committer.py", "journal"),
        ("greenstalk_server/net/acceptor.py", "other"),
        ("greenstalk_server/runtime/logs.py", "other"),
        ("greenstalk_server/cli.py", "other"),
        ("web/features/jobs/api/jobs.py", "dashboard"),
        ("lib/gevent/hub.py", "wait"),
        ("lib/json/encoder.py", "other"),
    ],
)
def test_module_determines_the_stage_of_other_lines(tmp_path: Path, path: str, stage: str) -> None:
    function = "Hub.run" if path.endswith("hub.py") else "f"
    assert stage_of((Frame(function, str(tmp_path / path), 1),)) == stage


def test_library_call_counts_for_the_calling_module(server: Path) -> None:
    stack = (Frame("Broker.put", str(server / "broker.py"), 1), Frame("dumps", "/lib/json/__init__.py", 1))
    assert stage_of(stack) == "core"


def test_stages_of_system_calls() -> None:
    names = ("sendto", "recvfrom", "epoll_wait", "fdatasync", "pwritev", "madvise", "")
    stages = ["send", "recv", "wait", "journal", "journal", "other", "other"]
    assert [stage_of_system_call(name) for name in names] == stages


SEND = """ 77
\tffffffff81 tcp_sendmsg ([kernel.kallsyms])
\tffffffff82 __x64_sys_sendto ([kernel.kallsyms])
\t10ab59 __send (/usr/lib/libc.so.6)
\t11 sock_send_impl (/usr/lib/_socket.so)
\t12 CPyDef_connection___Connection____deliver (/lib/0c41__mypyc.cpython-311.so)
\t13 CPyDef_connection___Connection___serve (/lib/0c41__mypyc.cpython-311.so)
"""
LOOKUP = """ 77
\t21 _Py_dict_lookup (/usr/lib/libpython3.11.so.1.0)
\t22 CPyDef_broker___Broker___put (/lib/0c41__mypyc.cpython-311.so)
\t23 CPyDef_session___Session____serve (/lib/0c41__mypyc.cpython-311.so)
"""
SWITCH = """ 77
\t31 greenlet::Greenlet::g_switchstack (/lib/_greenlet.cpython-311.so)
\t32 green_switch (/lib/_greenlet.cpython-311.so)
\t13 CPyDef_connection___Connection___serve (/lib/0c41__mypyc.cpython-311.so)
"""


def test_stages_of_perf_samples() -> None:
    samples = Samples()
    for sample in (SEND, LOOKUP, SWITCH, ""):
        samples.add(sample)
    assert samples.total == 3
    assert dict(samples.kernel) == {"send": 1}
    assert dict(samples.libraries) == {"libpython3": 1, "greenlet": 1}
    shares = {stage: share for stage, share in samples.shares().items() if share}
    assert shares == {stage: pytest.approx(1 / 3) for stage in ("send", "core", "wait")}
    assert (("Session.serve session", "parse"), ("Broker.put broker", "core")) in {
        tuple((name.replace("._", "."), stage) for name, stage in calls) for calls in samples.counts
    }


PROGRAM = """
import sys
def works():
    while True:
        sum(range(1000))
print("ready", flush=True)
works()
"""


def test_sampler_records_the_running_function(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    output = tmp_path / "stacks.json"
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    argv = [sys.executable, "-m", "bench.sampler", str(output), "program"]
    with ending(subprocess.Popen(argv, env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE)) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        stacks = PythonStacks()
        while not stacks.total:  # on a busy machine the first interval may end before the program has run
            process.send_signal(START)
            time.sleep(0.3)
            process.send_signal(STOP)
            while not output.exists():
                assert process.poll() is None
                time.sleep(0.01)
            stacks.add(output.read_text())
            output.unlink()
    assert {stack[-1].function for stack in stacks.counts} == {"works"}
    shares = stacks.shares(has_journal=False)
    assert sum(shares.values()) == pytest.approx(1)


def test_flame_graph_calls_are_as_wide_as_their_shares() -> None:
    root = Node("all", "#eee")
    root.add([("serve <connection>", "#abc"), ("send", "#def")], 3)
    root.add([("serve <connection>", "#abc")], 1)
    picture = ET.fromstring(svg(root, "cycle & more", "µs", 8.0, {"send": "#def"}))  # noqa: S314  our own
    rects = picture.iter("{http://www.w3.org/2000/svg}rect")
    tips = {tip.text: float(rect.get("width") or 0) for rect in rects for tip in rect}
    assert list(tips) == ["all: 8.00 µs", "serve <connection>: 8.00 µs", "send: 6.00 µs"]
    assert tips["send: 6.00 µs"] == pytest.approx(0.75 * tips["all: 8.00 µs"], rel=0.01)
