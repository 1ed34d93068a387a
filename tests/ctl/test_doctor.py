"""`doctor`: each kind of problem, with real servers."""

from __future__ import annotations

import re
from pathlib import Path

from tests.ctl.world import Done, WithApi, address, connect, ctl, run
from tests.support.daemon import Daemon
from tests.support.peer import eventually
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
        "protocol": "ok", "version": "ok", "open files": "ok",
        "dashboard": "ok", "journal": "note", "clock": "ok", "attention": "ok",
    }  # fmt: skip
    lines = run(*both, "doctor").text.splitlines()
    assert lines[0].startswith("ok      protocol    ") and len(lines) == len(done.json)


def test_tube_without_workers_is_a_problem_of_beanstalkd(one: Server) -> None:
    ctl(one, "put", "hello", "--tube", "mail")
    done = ctl(one, "doctor", "--json")
    assert (done.code, done.err) == (1, "greenstalkctl: 1 problem\n")
    assert text(done, "workers") == (
        "no worker watches mail; the ready jobs there wait; start workers, or check the names of the tubes"
    )
    with connect(one, "mail"):
        assert ctl(one, "doctor").code == 0


def test_tube_without_workers_is_a_note_if_the_protocol_cannot_tell_what_it_is(with_api: WithApi) -> None:
    run("--server", address(with_api), "put", "hello", "--tube", "mail")
    done = run("--server", address(with_api), "doctor", "--json")
    assert (done.code, states(done)["workers"]) == (0, "note")
    assert text(done, "workers").startswith("no worker watches mail; the ready jobs there wait; start workers unless")
    with connect(with_api, "mail"):
        assert states(run("--server", address(with_api), "doctor", "--json"))["workers"] == "ok"


CONDITIONS = """\
[attention]
no_consumers = "1s"

[policies.dead]
tubes = ["mail"]
max_attempts = 1
dead_letter = "failed"
"""
SENTENCE = "forgotten: 1 job of “forgotten” is ready, but .*: the oldest has waited for .+; see http:.*=forgotten"


def test_dead_letter_tube_and_tube_leased_over_http_need_no_worker(tmp_path: Path) -> None:
    """The API distinguishes such tubes from a tube without workers."""
    config = tmp_path / "greenstalk.toml"
    config.write_text(CONDITIONS)
    with Daemon("-l", "127.0.0.1", "-p", "0", "--web-port", "0", "--config", str(config)) as daemon:
        where = ("--server", f"127.0.0.1:{daemon.port}")
        for tube in ("mail", "leased", "leased", "forgotten"):
            assert run(*where, "put", "hello", "--tube", tube).code == 0
        assert run(*where, "work", "mail", "--count", "1", "--", "false").code == 1
        assert run("--api", daemon.dashboard, "reserve", "leased").code == 0

        def unserved() -> list[str]:
            done = run(*where, "--api", daemon.dashboard, "doctor", "--json")
            assert "workers" not in states(done)
            found = [each["text"] for each in done.json if each["check"] == "no_consumers"]
            assert not found or (done.code == 1 and re.fullmatch(SENTENCE, str(found[0])))
            return [str(each).partition(":")[0] for each in found]

        eventually(lambda: bool(unserved()), "a tube without workers is a problem", pause=0.5)
        assert unserved() == ["forgotten"]
        assert run(*where, "tube", "failed", "--json").json["current-jobs-ready"] == 1


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
