"""Access rules: every command with and without its grant, by listener and certificate, and with real clients."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path

import greenstalk
import pytest

from greenstalk_server.core.broker import Broker
from greenstalk_server.core.client import Client
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.core.listener import BrokerListener
from greenstalk_server.core.operations import draining, editing, policy_changes, putting, ticking
from greenstalk_server.core.outcomes import EditOutcome
from greenstalk_server.core.policies.policy import PolicySet, parse_policy
from greenstalk_server.protocol.access import Grants, grants, read_rules
from greenstalk_server.protocol.restricted_session import RestrictedSession
from tests.support.daemon import TIMEOUT, Daemon, environment, run
from tests.support.pages import block
from tests.support.talk import CUTS, Talk
from tests.support.tls import connect, context, make_certificates
from tests.support.world import START, make_broker

REFUSED = b"UNKNOWN_COMMAND\r\n"
NOT_FOUND = b"NOT_FOUND\r\n"


class Guarded(Talk):
    """A connection to *broker* with grants: comma-separated patterns of tubes and keys; any text for *administer*."""

    def __init__(
        self,
        broker: Broker,
        produce: str = "",
        consume: str = "",
        inspect: str = "",
        administer: str = "",
        keys: str = "",
    ) -> None:
        super().__init__(broker)
        self.session.close(self.now)
        made, taken, seen = (list(filter(None, patterns.split(","))) for patterns in (produce, consume, inspect))
        granted = Grants(made, taken, seen, bool(administer), list(filter(None, keys.split(","))))
        self.session = RestrictedSession(broker, self._on_wake, granted, 0, START)


@pytest.fixture
def broker() -> Broker:
    """A broker with two jobs: job 1 is ready in `mail`, job 2 is buried in `news`."""
    broker = make_broker()
    talk = Talk(broker)
    talk.send(b"use mail\r\nput 0 0 60 1\r\na\r\nuse news\r\nput 0 0 60 1\r\nb\r\nreserve-job 2\r\nbury 2 0\r\n")
    talk.close()
    return broker


def refusals(broker: Broker) -> int:
    return broker.limit_counters.counts()["access"]


class Drains(BrokerListener):
    """Records the drains that clients have begun and ended."""

    def __init__(self) -> None:
        self.seen: list[bool] = []

    def on_drain(self, client: Client, is_draining: bool) -> None:
        self.seen.append(is_draining)


def test_wait_ends_when_the_job_moves_to_a_hidden_tube(broker: Broker) -> None:
    client = Guarded(broker, inspect="mail,shown")
    assert client.send(b"wait 1\r\n") == b""
    assert editing.edit_job(broker, 1, START, tube=b"shown") == EditOutcome.DONE
    assert client.woken == 0
    assert editing.edit_job(broker, 1, START, tube=b"hidden") == EditOutcome.DONE
    assert client.resume() == NOT_FOUND


def test_wait_ends_when_the_job_becomes_a_dead_letter_in_a_hidden_tube(broker: Broker) -> None:
    keys = {"tubes": ["mail"], "max_attempts": 1, "dead_letter": "hidden"}
    policy_changes.set_policies(broker, PolicySet([parse_policy("p", keys)]), START)
    ticking.tick(broker, START)
    client, worker = Guarded(broker, inspect="mail"), Talk(broker)
    assert worker.send(b"reserve-job 1\r\n") == b"RESERVED 1 1\r\na\r\n"
    assert client.send(b"wait 1\r\n") == b""
    assert worker.send(b"release 1 0 0\r\n") == b"RELEASED\r\n"
    assert broker.jobs[1].tube.name == b"hidden"
    assert client.resume() == NOT_FOUND


def test_drain_and_undrain_require_the_grant_of_administration(broker: Broker) -> None:
    drains = Drains()
    broker.subscribe(drains)
    stranger = Guarded(broker, produce="*", consume="*", inspect="*")
    assert stranger.send(b"drain\r\nundrain\r\n") == REFUSED * 2
    assert refusals(broker) == 2
    admin = Guarded(broker, administer="yes")
    assert admin.send(b"undrain\r\ndrain\r\ndrain\r\n") == b"NOT_DRAINING\r\nDRAINING\r\nDRAINING\r\n"
    assert stranger.send(b"undrain\r\nput 0 0 9 0\r\n\r\n") == REFUSED + b"DRAINING\r\n"
    assert b"\ndraining: true\n" in stranger.send(b"stats\r\n")
    assert admin.send(b"undrain\r\nput 0 0 9 0\r\n\r\n") == b"NOT_DRAINING\r\n" + REFUSED
    assert stranger.send(b"put 0 0 9 0\r\n\r\n").startswith(b"INSERTED")
    assert drains.seen == [True, False]


@pytest.mark.parametrize("is_first", [False, True])
def test_undrain_does_not_end_the_drain_of_the_operator(broker: Broker, is_first: bool) -> None:
    """SIGUSR1 calls `drain`, before or after the command of a client."""
    admin = Guarded(broker, administer="yes")
    if is_first:
        draining.drain(broker)
    assert admin.send(b"drain\r\n") == b"DRAINING\r\n"
    draining.drain(broker)
    assert admin.send(b"undrain\r\nundrain\r\n") == b"DRAINING\r\n" * 2
    assert broker.is_draining


def test_undrain_does_not_end_the_drain_of_a_stopping_server(broker: Broker) -> None:
    admin = Guarded(broker, administer="yes")
    assert admin.send(b"drain\r\n") == b"DRAINING\r\n"
    draining.stop(broker)
    assert admin.send(b"undrain\r\n") == b"DRAINING\r\n"
    assert broker.is_draining


def test_grants_of_tubes_do_not_follow_from_administration(broker: Broker) -> None:
    admin = Guarded(broker, administer="yes")
    assert admin.send(b"watch mail\r\nreserve\r\nput 0 0 9 0\r\n\r\nstats\r\n") == REFUSED * 4


# Each command, without a grant for the tube, and with only the grant that it requires


@pytest.mark.parametrize(
    ("command", "refused", "grant", "allowed"),
    [
        (b"use mail", REFUSED, "produce", b"USING mail\r\n"),
        (b"use mail", REFUSED, "consume", b"USING mail\r\n"),
        (b"use mail", REFUSED, "inspect", b"USING mail\r\n"),
        (b"watch mail", REFUSED, "consume", b"WATCHING 1\r\n"),
        (b"watch mail 5", REFUSED, "consume", b"WATCHING 1\r\n"),
        (b"reserve-job 1", NOT_FOUND, "consume", b"RESERVED 1 1\r\na\r\n"),
        (b"delete 1", NOT_FOUND, "consume", b"DELETED\r\n"),
        (b"kick-job 2", NOT_FOUND, "consume", b"KICKED\r\n"),
        (b"pause-tube mail 9", REFUSED, "consume", b"PAUSED\r\n"),
        (b"peek 1", NOT_FOUND, "inspect", b"FOUND 1 1\r\na\r\n"),
        (b"stats-job 1", NOT_FOUND, "inspect", b"OK "),
        (b"stats-tube mail", REFUSED, "inspect", b"OK "),
        (b"stats", REFUSED, "inspect", b"OK "),
        (b"put-in-tube mail 0 0 60 1\r\nc", REFUSED, "produce", b"INSERTED 3\r\n"),
        (b"delete-batch 1", b"DELETED_BATCH 0 1\r\n", "consume", b"DELETED_BATCH 1 0\r\n"),
        (b"flush-tube mail", REFUSED, "consume", b"FLUSHED 1\r\n"),
        (b"flush-buried news", REFUSED, "consume", b"FLUSHED 1\r\n"),
        (b"truncate mail", REFUSED, "consume", b"TRUNCATED 1\r\n"),
        (b"reprioritize 1 5", NOT_FOUND, "consume", b"REPRIORITIZED\r\n"),
        (b"wait 2", NOT_FOUND, "inspect", b"BURIED 2\r\n"),
    ],
)
def test_command_requires_its_grant(broker: Broker, command: bytes, refused: bytes, grant: str, allowed: bytes) -> None:
    every = {"produce": "other,*r", "consume": "other,*r", "inspect": "other,*r"}
    if command == b"stats":
        del every["inspect"]
    stranger = Guarded(broker, **every)
    assert stranger.send(command + b"\r\nlist-tube-used\r\n") == refused + b"USING default\r\n"
    assert refusals(broker) == 1
    assert Guarded(broker, **{grant: "mail,news"}).send(command + b"\r\n").startswith(allowed)
    assert refusals(broker) == 1
    others = {kind: "mail,news" for kind in ("produce", "consume", "inspect") if kind != grant}
    if command != b"use mail":
        assert Guarded(broker, **others).send(command + b"\r\n") in (refused, NOT_FOUND)


@pytest.mark.parametrize(
    ("command", "grant", "allowed"),
    [
        (b"put 0 0 60 3\r\nabc", "produce", b"INSERTED 3\r\n"),
        (b"kick 9", "consume", b"KICKED 1\r\n"),
        (b"peek-buried", "inspect", b"FOUND 2 1\r\nb\r\n"),
        (b"peek-ready", "inspect", NOT_FOUND),
        (b"peek-delayed", "inspect", NOT_FOUND),
        (b"peek-reserved", "inspect", NOT_FOUND),
    ],
)
def test_command_on_the_used_tube_requires_its_grant(
    broker: Broker, command: bytes, grant: str, allowed: bytes
) -> None:
    others = {kind: "news" for kind in ("produce", "consume", "inspect") if kind != grant}
    refused = Guarded(broker, **others).send(b"use news\r\n" + command + b"\r\nlist-tube-used\r\n")
    assert refused == b"USING news\r\n" + REFUSED + b"USING news\r\n"
    assert Guarded(broker, **{grant: "news"}).send(b"use news\r\n" + command + b"\r\n") == b"USING news\r\n" + allowed


# Keys of tags


@pytest.mark.parametrize("tag", ["grp", "aft", "con"])
@pytest.mark.parametrize("put", ["put", "put-in-tube mail"])
def test_put_requires_the_grant_of_its_keys(broker: Broker, put: str, tag: str) -> None:
    talk = Guarded(broker, produce="mail", inspect="mail", keys="mail.*,shared")
    tagged = f"{put} 0 0 60 1 {tag}:%s idp:any\r\nx\r\n"
    sent = "use mail\r\n" + tagged % "other" + tagged % "mail.1" + "peek-ready\r\n"
    assert talk.send(sent.encode()) == b"USING mail\r\n" + REFUSED + b"INSERTED 3\r\nFOUND 1 1\r\na\r\n"
    assert refusals(broker) == 1


def test_each_key_of_a_put_requires_a_grant(broker: Broker) -> None:
    talk = Guarded(broker, produce="mail", keys="mine")
    for tags in (b"grp:mine con:other", b"con:mine aft:other", b"aft:mine grp:other"):
        assert talk.send(b"put-in-tube mail 0 0 60 1 %b\r\nx\r\n" % tags) == REFUSED
    assert talk.send(b"put-in-tube mail 0 0 60 1 grp:mine con:mine idp:other\r\nx\r\n") == b"INSERTED 3\r\n"


def test_stats_group_requires_the_grant_of_the_key(broker: Broker) -> None:
    owner = Guarded(broker, produce="mail", inspect="mail", keys="mine")
    assert owner.send(b"put-in-tube mail 0 0 60 1 grp:mine\r\nx\r\nstats-group mine\r\n").startswith(
        b"INSERTED 3\r\nOK "
    )
    assert owner.send(b"stats-group other\r\n") == REFUSED
    assert Guarded(broker, inspect="mail,news").send(b"stats-group mine\r\n") == REFUSED
    assert Guarded(broker, produce="*", keys="*").send(b"stats-group mine\r\n") == REFUSED
    assert Guarded(broker, inspect="*").send(b"stats-group mine\r\n").startswith(b"OK ")


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [
        ({"produce": ["mail", "*"]}, True),
        ({"produce": ["mail*"]}, False),
        ({"produce": ["*"], "keys": []}, False),
        ({"produce": ["*"], "keys": ["other"]}, False),
        ({"produce": ["mail"], "keys": ["k*"]}, True),
        ({"consume": ["*"], "inspect": ["*"]}, False),
    ],
)
def test_rule_for_every_tube_allows_every_key_by_default(rule: dict[str, object], allowed: bool) -> None:
    (read,) = read_rules([rule])
    assert grants([read], "any", []).may_use_key(b"key") == allowed
    assert read.to_json() == rule


def test_rule_with_a_wrong_key_pattern_is_refused() -> None:
    with pytest.raises(ValueError, match="rule 1: keys: 'a:b' cannot match any key"):
        read_rules([{"produce": ["mail"], "keys": ["a:b"]}])
    with pytest.raises(ValueError, match="rule 1: keys: must be an array of keys"):
        read_rules([{"produce": ["mail"], "keys": "all"}])


@pytest.mark.parametrize("cut", CUTS)
def test_body_of_a_refused_put_is_not_executed(broker: Broker, cut: Callable[[bytes], Iterable[bytes]]) -> None:
    broker.max_job_size = 20
    talk = Guarded(broker, produce="mail", inspect="*")
    stream = b"put 0 0 60 9\r\ndelete 1\r\r\nuse mail\r\nput 0 0 60 1\r\nx\r\n"
    replies = talk.send_all(cut(stream + b"put 0 0 60 21\r\n%b\r\n" % bytes(21)))
    assert replies == REFUSED + b"USING mail\r\nINSERTED 3\r\nJOB_TOO_BIG\r\n"
    assert refusals(broker) == 1
    talk.close()


def test_refused_use_keeps_the_used_tube(broker: Broker) -> None:
    talk = Guarded(broker, produce="mail")
    replies = talk.send(b"use mail\r\nuse news\r\nput 0 0 60 1\r\nx\r\n")
    assert replies == b"USING mail\r\n" + REFUSED + b"INSERTED 3\r\n"
    assert broker.jobs[3].tube.name == b"mail"


def test_worker_may_use_every_command_on_its_reserved_job(broker: Broker) -> None:
    talk = Guarded(broker, consume="mail")
    replies = talk.send(b"watch mail\r\nreserve\r\ntouch 1\r\npeek 1\r\nstats-job 1\r\nbury 1 0\r\nkick-job 1\r\n")
    for reply in (b"RESERVED 1 1\r\na", b"TOUCHED\r\n", b"FOUND 1 1\r\na", b"OK ", b"BURIED\r\n", b"KICKED\r\n"):
        assert reply in replies
    assert talk.send(b"reserve\r\nrelease 1 0 0\r\nreserve\r\ndelete 1\r\n").endswith(b"DELETED\r\n")
    assert refusals(broker) == 0


def test_client_without_the_grant_does_not_watch_default(broker: Broker) -> None:
    Talk(broker).send(b"put 0 0 60 1\r\nx\r\n")
    talk = Guarded(broker, consume="mail")
    assert talk.send(b"reserve\r\nreserve-with-timeout 0\r\nlist-tubes-watched\r\n").startswith(REFUSED * 2 + b"OK ")
    assert talk.send(b"ignore default\r\nwatch default\r\n") == b"NOT_IGNORED\r\n" + REFUSED
    assert talk.send(b"watch mail\r\nignore default\r\nignore mail\r\n") == b"WATCHING 1\r\n" * 2 + b"NOT_IGNORED\r\n"
    assert talk.send(b"reserve\r\nreserve-with-timeout 0\r\n") == b"RESERVED 1 1\r\na\r\nTIMED_OUT\r\n"
    talk.close()


def test_list_tubes_shows_only_granted_tubes(broker: Broker) -> None:
    talk = Guarded(broker, consume="mail")
    assert talk.send(b"list-tubes\r\n") == b"OK 11\r\n---\n- mail\n\r\n"
    assert Guarded(broker).send(b"list-tubes\r\n") == b"OK 4\r\n---\n\r\n"


def test_list_tubes_is_charged_for_each_examined_tube(broker: Broker) -> None:
    """Few of many tubes are granted. The session yields between the slices of pipelined list-tubes commands."""
    for number in range(2000):
        putting.put_into(broker, b"%d" % number, 0, 0, 60 * SECOND, b"", START)
    talk = Guarded(broker, consume="mail")
    listed = b"OK 11\r\n---\n- mail\n\r\n"
    outs = [talk.session.receive(b"list-tubes\r\n" * 3, START)]
    while talk.session.has_more:
        outs.append(talk.session.resume(START))
    assert b"".join(outs) == listed * 3
    assert len(outs) >= 6 and max(out.count(b"OK") for out in outs) == 1


def test_malformed_commands_get_the_usual_errors(broker: Broker) -> None:
    talk = Guarded(broker)
    assert talk.send(b"use \r\nnonsense\r\npeek x\r\n") == b"BAD_FORMAT\r\nUNKNOWN_COMMAND\r\nBAD_FORMAT\r\n"


# Rules


RULES = read_rules(
    [
        {"listener": "unix:/run/queue", "produce": ["*"], "consume": ["*"], "inspect": ["*"]},
        {"client": "mail-*", "consume": ["mail", "mail.*"]},
        {"client": "*.example.com", "produce": ["a*c"]},
        {"inspect": ["public"]},
    ]
)


def test_rules_for_listener_and_names_are_combined() -> None:
    local = grants(RULES, "unix:/run/queue", [])
    assert local.may_produce(b"x") and local.may_consume(b"x") and local.may_inspect(b"x")
    mail = grants(RULES, "0.0.0.0", ["mail-1", "one.example.com"])
    assert mail.may_consume(b"mail") and mail.may_consume(b"mail.eu") and mail.may_inspect(b"public")
    assert mail.may_produce(b"ac") and mail.may_produce(b"abbc") and mail.may_any(b"abc")
    for tube in (b"mailx", b"xmail", b"mail+eu", b"abcd", b"Mail"):
        assert not mail.may_any(tube)
    nobody = grants(RULES, "0.0.0.0", [])
    assert not nobody.may_consume(b"mail") and nobody.may_inspect(b"public")
    assert not grants(RULES, "0.0.0.0", ["xmail-1", "mail", "example.com\n"]).may_consume(b"mail")


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("*", b"a", b""),
        ("a*b*b", b"a-b-b", b"a-b"),
        ("*a*a*", b"aa", b"a"),
        ("a*", b"a", b"ba"),
        ("*.a*.b", b".a.b", b".a-b"),
        ("**", b"a", b""),
        ("*-a-*-b", b"-a-a-b-b", b"-a-b"),
        ("*a" * 30 + "*b", b"a" * 199 + b"b", b"a" * 200),
    ],
)
def test_star_matches_any_characters_in_linear_time(pattern: str, matching: bytes, other: bytes) -> None:
    """Backtracking over every position for each star would take exponential time for the last row."""
    granted = Grants([], [pattern], [])
    assert granted.may_consume(matching)
    assert not other or not granted.may_consume(other)


@pytest.mark.parametrize(
    ("rule", "error"),
    [
        ('listener = "127.0.0.2"', "listener 127.0.0.2: must be one of 127.0.0.1"),
        ('client = "mail-*"', "client mail-*: without --tls-client-ca, clients have no names"),
    ],
)
def test_rule_that_no_client_can_match_is_a_start_error(tmp_path: Path, rule: str, error: str) -> None:
    path = tmp_path / "greenstalk.toml"
    path.write_text(f'listen = "127.0.0.1"\n[[access]]\n{rule}\n')
    done = run("--config", str(path), "-p", "0", "--no-web")
    assert done.returncode == 5
    assert f"{path}:2: access: {error}" in done.stderr


def test_rules_with_an_unprotected_dashboard_log_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "greenstalk.toml"
    path.write_text('listen = "127.0.0.1"\n[[access]]\nproduce = ["*"]\n')
    flags = ("--config", str(path), "-p", "0", "--web-port", "0")
    for password, is_warned in (("", True), ("secret", False)):
        with Daemon(*flags, environ=environment(GREENSTALK_WEB_PASSWORD=password)) as daemon:
            assert daemon.stop()[1].count("the access rules do not apply to the dashboard") == is_warned


# A real server with the example of docs/security.md, and a real client library


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    make_certificates(directory)
    return directory


@pytest.fixture(scope="module")
def ruled(certificates: Path) -> Iterator[Daemon]:
    example = block("security.md", "toml", "listen = ")
    text = example.replace("/etc/greenstalk", str(certificates)).replace("0.0.0.0", "127.0.0.1")
    path = certificates / "greenstalk.toml"
    path.write_text(text.replace("/run/greenstalk.sock", f"{certificates}/queue"))
    with Daemon("--config", str(path), "-p", "0", "--web-port", "0", environ=environment()) as daemon:
        yield daemon
        code, stderr = daemon.stop()
        assert code == 0 and "Traceback" not in stderr
        assert "limit=access" in stderr and "what='watch report.daily by mail-1'" in stderr


def port(daemon: Daemon) -> int:
    found = re.search(r"127\.0\.0\.1:(\d+) \(TLS\)", daemon.first_lines)
    assert found is not None
    return int(found[1])


def test_client_library_with_and_without_grants(ruled: Daemon, certificates: Path) -> None:
    secured = context(certificates, "mail-1")
    with (
        greenstalk.Client(str(certificates / "queue"), use="mail") as local,
        greenstalk.Client(connect(port(ruled), secured), watch="mail", use="report.daily") as worker,
        greenstalk.Client(connect(port(ruled), context(certificates, "monitoring"))) as monitoring,
    ):
        id = local.put("hello")
        job = worker.reserve()
        assert (job.id, job.body) == (id, "hello")
        assert worker.stats_job(job)["reserves"] == 1
        assert monitoring.stats_tube("mail")["current-jobs-reserved"] == 1
        worker.put("done")
        worker.release(job)
        with pytest.raises(greenstalk.UnknownCommandError):
            worker.watch("report.daily")
        with pytest.raises(greenstalk.UnknownCommandError):
            worker.use("news")
        with pytest.raises(greenstalk.NotFoundError):
            monitoring.delete(id)
        with pytest.raises(greenstalk.UnknownCommandError):
            monitoring.put("x" * 1000)
        with pytest.raises(greenstalk.UnknownCommandError):
            monitoring.reserve(timeout=0)
        assert monitoring.peek(id).body == "hello"
        assert set(worker.tubes()) == {"mail", "report.daily"}
        worker.delete(worker.reserve())


@pytest.mark.parametrize("subject", ["/CN=stray", "/CN=monitoring/CN=stray", "/CN=mail-1/OU=monitoring/CN=stray"])
def test_certificate_without_a_rule_has_no_access(ruled: Daemon, certificates: Path, subject: str) -> None:
    """The same authority has signed the certificate, but no rule matches its name, the last of its common names."""
    issue(certificates, subject)
    with closing(connect(port(ruled), context(certificates, "stray"))) as sock, sock.makefile("rb") as reader:
        sock.sendall(b"stats\r\nuse mail\r\nwatch mail\r\nreserve\r\nlist-tubes\r\n")
        assert [reader.readline() for _ in range(5)] == [REFUSED] * 4 + [b"OK 4\r\n"]


def test_last_common_name_of_a_certificate_is_its_name(ruled: Daemon, certificates: Path) -> None:
    issue(certificates, "/CN=stray/CN=monitoring")
    with closing(connect(port(ruled), context(certificates, "stray"))) as sock, sock.makefile("rb") as reader:
        sock.sendall(b"stats\r\n")
        assert reader.readline().startswith(b"OK ")


def issue(certificates: Path, subject: str) -> None:
    """Create the certificate `stray.pem` for *subject*, signed by the authority."""
    new = ["openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-subj", subject]
    sign = ["openssl", "x509", "-req", "-in", "stray.csr", "-CA", "authority.pem", "-CAkey", "authority.key"]
    for command in ([*new, "-keyout", "stray.key", "-out", "stray.csr"], [*sign, "-days", "9", "-out", "stray.pem"]):
        subprocess.run(command, cwd=certificates, check=True, capture_output=True, timeout=TIMEOUT)
