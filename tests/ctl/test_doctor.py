"""`doctor`: each kind of problem, with real servers."""

from __future__ import annotations

from pathlib import Path

from tests.ctl.world import Done, WithApi, address, connect, ctl, run
from tests.support.daemon import Daemon
from tests.support.ports import free_ports
from tests.support.servers import Server


def states(done: Done) -> dict[str, str]:
    return {finding["check"]: finding["state"] for finding in done.json}


def text(done: Done, check: str) -> str:
    (found,) = (str(finding["text"]) for finding in done.json if finding["check"] == check)
    return found


def test_server_without_problems(with_api: WithApi) -> None:
    both = ("--server", address(with_api), "--api", with_api.dashboard)
    done = run(*both, "doctor", "--json")
    assert done.code == 0
    assert states(done) == {
        "protocol": "ok", "version": "ok", "workers": "ok", "open files": "ok",
        "dashboard": "ok", "journal": "note", "clock": "ok", "attention": "ok",
    }  # fmt: skip
    lines = run(*both, "doctor").text.splitlines()
    assert lines[0].startswith("ok      protocol    ") and len(lines) == len(done.json)


def test_tube_without_workers_is_a_problem(server: Server) -> None:
    ctl(server, "put", "hello", "--tube", "mail")
    done = ctl(server, "doctor", "--json")
    assert (done.code, done.err) == (1, "greenstalkctl: 1 problem\n")
    assert text(done, "workers") == (
        "no worker watches mail; the ready jobs there wait; start workers, or check the names of the tubes"
    )
    with connect(server, "mail"):
        assert ctl(server, "doctor").code == 0


def test_beanstalkd_has_no_extensions(one: Server) -> None:
    done = ctl(one, "doctor", "--json")
    assert states(done)["version"] == "note" and "has no protocol extensions" in text(done, "version")
    assert states(done)["dashboard"] == "note"


def test_server_that_is_not_reachable_is_a_problem() -> None:
    port, web = free_ports(2)
    done = run("-s", f"127.0.0.1:{port}", "--api", f"http://127.0.0.1:{web}", "doctor", "--json")
    assert (done.code, states(done)) == (1, {"protocol": "problem", "dashboard": "problem"})
    assert "check that it is running" in text(done, "protocol") and "cannot connect" in text(done, "dashboard")


def test_server_that_drains_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text('[[access]]\nproduce = ["*"]\ninspect = ["*"]\nadminister = true\n')
    with Daemon("-l", "127.0.0.1", "-p", "0", "--no-web", "--config", str(tmp_path / "rules.toml")) as daemon:
        where = ("-s", f"127.0.0.1:{daemon.port}")
        assert run(*where, "drain").code == 0
        assert run(*where, "put", "hello").code == 4
        done = run(*where, "doctor", "--json")
        assert states(done)["puts"] == "problem" and "greenstalkctl undrain" in text(done, "puts")
        assert run(*where, "undrain", "--json").json == {"draining": False}
        assert run(*where, "put", "hello").code == 0
        assert run(*where, "raw", "drain").code == 0
