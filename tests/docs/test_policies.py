"""docs/policies.md: its examples are valid, its tables agree with the code, and a server behaves as described."""

from __future__ import annotations

import re
import shlex
import signal
import tomllib
from pathlib import Path
from typing import Any

import pytest

from greenstalk_server.core.jobs.job import SECOND, Job
from greenstalk_server.core.policies.policy import SETTINGS, PolicySet, parse_policy
from greenstalk_server.core.policies.tube_policy_state import TubePolicyState
from tests.support.daemon import REPOSITORY, Daemon
from tests.support.peer import Peer
from tests.support.world import World

PAGE = (REPOSITORY / "docs" / "policies.md").read_text()
BLOCK = re.compile(r"^```toml\n(.*?)^```", re.DOTALL | re.MULTILINE)
BLOCKS = [tomllib.loads(block)["policies"] for block in BLOCK.findall(PAGE)]
RECIPES = {name: document for block in BLOCKS[:5] for name, document in block.items()}
JOB = b"put 0 0 60 2\r\nhi"


def value_of(text: str) -> object:
    return int(text) if text.isdecimal() else text


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table after *heading*, without its head."""
    lines = PAGE.partition(f"{heading}\n")[2].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    table = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table[2:]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "greenstalk.toml"


def serve(file: Path, text: str, *flags: str) -> Daemon:
    file.write_text(text)
    return Daemon("-l", "127.0.0.1", "-p", "0", "--no-web", "--config", str(file), *flags)


def ids_of(peer: Peer, tube: bytes, count: int) -> list[int]:
    """Put *count* jobs with different bodies into *tube*; return their ids."""
    peer.ask(b"use " + tube)
    return [int(peer.ask(b"put 0 0 60 4\r\n%04d" % number).split()[1]) for number in range(count)]


def reserve(peer: Peer, timeout: int = 0) -> int | bytes:
    """Return the id of the reserved job, or the reply."""
    reply = peer.ask(b"reserve-with-timeout %d" % timeout)
    if not reply.startswith(b"RESERVED"):
        return reply
    _, id, size = reply.split()
    peer.read(int(size) + 2)
    return int(id)


# The page


def test_each_command_sets_the_policy_of_its_recipe() -> None:
    commands = re.findall(r"^greenstalkctl policy set (.*)$", PAGE, re.MULTILINE)
    assert len(commands) == len(RECIPES) == 5
    for command, (name, document) in zip(commands, RECIPES.items(), strict=True):
        first, *words = shlex.split(command)
        given: dict[str, Any] = {key: value_of(text) for key, _, text in (word.partition("=") for word in words)}
        given["tubes"] = [given["tubes"]]
        assert (first, given) == (name, document)
        parse_policy(name, document)


def test_table_lists_every_setting() -> None:
    keys = [key for row in rows("## All settings") for key in re.findall(r"`(\w+)`", row[0])]
    assert keys == ["tubes", "priority", *sorted(SETTINGS, key=keys.index)]


def test_merged_settings_are_those_of_the_table() -> None:
    policies = PolicySet([parse_policy(name, document) for name, document in BLOCKS[5].items()])
    table = rows("[policies.bulk]")
    assert len(table) == 3
    for tube, attempts, expiry in table:
        found = policies.effective(tube.strip("`").encode())
        assert found is not None
        assert attempts == f"{found.max_attempts}, from `{found.origins['max_attempts']}`"
        days = found.expire_after // (86400 * SECOND)
        assert expiry == f"{f'{days} days' if days else 'never'}, from `{found.origins['expire_after']}`"


def test_delays_of_retries_are_those_of_the_table() -> None:
    (delays,) = rows("### The delay of a retry")
    policy = PolicySet([parse_policy("mail", RECIPES["mail"])]).effective(b"mail.welcome")
    assert policy is not None
    policy_state, job = TubePolicyState(policy, b"", {}), Job(1, World().broker.default_tube, b"", 0, 0, 0, 0)
    for delay in delays[1:]:
        job.reserves += 1
        assert policy_state.retry_delay(job, 0.5) == int(delay) * SECOND
    assert len(delays) == 8


# The recipes


@pytest.fixture
def recipes(file: Path) -> str:
    """The recipes of the page, as one file."""
    return "\n".join(BLOCK.findall(PAGE)[:5])


def test_job_has_five_attempts_with_growing_delays(file: Path, recipes: str) -> None:
    with serve(file, recipes) as server, Peer(server) as peer:
        peer.ask(b"use mail.welcome")
        assert peer.ask(JOB) == b"INSERTED 1"
        delays = []
        for _ in range(5):
            assert peer.ask(b"reserve-job 1") == b"RESERVED 1 2"
            peer.read(4)
            assert peer.ask(b"release 1 0 0") == b"RELEASED"
            job = peer.stats(b"stats-job 1")
            delays.append((job["tube"], job["state"], job["delay"]))
        assert delays == [*[("mail.welcome", "delayed", str(delay)) for delay in (10, 20, 40, 80)],
                          ("mail.failed", "ready", "0")]  # fmt: skip
        assert job["reserves"] == "5"
        for _ in range(6):
            assert peer.ask(b"reserve-job 1") == b"RESERVED 1 2"
            peer.read(4)
            assert peer.ask(b"release 1 0 0") == b"RELEASED"
        job = peer.stats(b"stats-job 1")
        assert (job["tube"], job["state"]) == ("mail.failed", "ready"), "the policy does not apply to this tube"


# The other sections


def test_crash_of_the_server_ends_an_attempt(file: Path, tmp_path: Path) -> None:
    text = '[policies.mail]\ntubes = ["mail"]\nmax_attempts = 1\ndead_letter = "failed"\nretry_delay = 10\n'
    flags = ("-b", str(tmp_path / "journal"), "-f", "0")
    (tmp_path / "journal").mkdir()
    with serve(file, text, *flags) as server, Peer(server) as peer:
        ids = ids_of(peer, b"mail", 2)
        peer.ask(b"watch mail")
        assert reserve(peer) == ids[0]
        assert peer.ask(JOB).startswith(b"INSERTED"), "so the record of the reservation is written"
        server.stop(signal.SIGKILL)
    with serve(file, text, *flags) as server, Peer(server) as peer:
        assert [peer.stats(b"stats-job %d" % id)["tube"] for id in ids] == ["failed", "mail"]
        assert peer.stats(b"stats-job %d" % ids[0])["state"] == "ready"


def test_replies_to_clients(file: Path) -> None:
    text = '[policies.mail]\ntubes = ["mail"]\nmax_jobs = 1\nmax_job_size = 2\nttr_min = 5\nttr_max = 9\n'
    with serve(file, text) as server, Peer(server) as peer:
        peer.ask(b"use mail")
        assert peer.ask(b"put 0 0 60 3\r\nhiy") == b"JOB_TOO_BIG"
        assert peer.ask(JOB).startswith(b"INSERTED")
        assert peer.ask(JOB) == b"OUT_OF_MEMORY"
        assert peer.stats(b"stats-job 2")["ttr"] == "9"
