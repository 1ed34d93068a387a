"""Parsing of options from the command line and the environment; tests/cli starts the real command."""

from __future__ import annotations

import json
import re
from ipaddress import ip_network
from pathlib import Path

import pytest

from greenstalk_server import BUILD, __version__
from greenstalk_server.config.command_line import (
    CheckConfig,
    Command,
    Handover,
    HashPassword,
    Information,
    JournalCheck,
    JournalExport,
    JournalImport,
    ShowConfig,
    parse,
    usage,
)
from greenstalk_server.config.definitions import DEFINITIONS
from greenstalk_server.config.options import Options, UsageError
from greenstalk_server.config.show import as_json, as_table
from greenstalk_server.config.tables.roles import BUILT_IN_ROLES
from greenstalk_server.config.tables.thresholds import ThresholdSet
from greenstalk_server.config.text import without_password
from greenstalk_server.config.validation import TOKENS
from greenstalk_server.core.limits import Limits

GIB = 2**30

ADMIN = {"GREENSTALK_WEB_PASSWORD": "pa55word"}
ADMIN_FILE = {"GREENSTALK_WEB_PASSWORD_FILE": "/run/secret"}
VIEWER = {"GREENSTALK_WEB_VIEWER_PASSWORD": "l00k"}
SCRAPER = {"GREENSTALK_METRICS_TOKEN": "t0ken"}
PROVIDER = {
    "GREENSTALK_OIDC_ISSUER": "https://login.example.com/realms/a",
    "GREENSTALK_OIDC_CLIENT_ID": "queue",
    "GREENSTALK_OIDC_CLIENT_SECRET": "cl1ent",
}
PROGRAMS = {"GREENSTALK_API_TOKEN": "pr0gram", "GREENSTALK_API_VIEWER_TOKEN": "st4ts"}


SIZES = ", or with a unit, as in 64k, 10MB or 2GiB (k is 1024)"
TIMES = ", or with units, as in 50ms, 90s or 1h30m; or never"


def options(*argv: str, **environ: str) -> Options:
    parsed = parse(argv, environ)
    assert isinstance(parsed, Options)
    return parsed


def refusal(*argv: str, **environ: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        parse(argv, environ)
    return caught.value


def test_defaults() -> None:
    assert options() == Options(
        config_file=None,
        binlog_dir=None,
        sync_interval_ns=50_000_000,
        binlog_max_size=10_485_760,
        listen=("0.0.0.0",),
        port=11300,
        user=None,
        max_job_size=65535,
        log_level="info",
        log_format="text",
        strict_recovery=False,
        strict_protocol=False,
        extended_stats=False,
        tls_cert=None,
        tls_key=None,
        tls_client_ca=None,
        access=(),
        policies=(),
        attention=ThresholdSet(),
        alerts=(),
        servers=(),
        limits=Limits(
            connections=0,
            connections_per_address=0,
            jobs=0,
            bytes=0,
            tube_jobs=0,
            tube_bytes=0,
            tubes=0,
            watched=10240,
            rate=0,
            output=2**20,
            idle_timeout=0,
            command_timeout=0,
            dead_peer_timeout=300,
        ),
        memory_limit=0,
        web_host="127.0.0.1",
        web_port=8080,
        web_enabled=True,
        web_user=None,
        web_password=None,
        web_password_file=None,
        operator_password=None,
        viewer_password=None,
        api_token=None,
        api_operator_token=None,
        api_viewer_token=None,
        metrics_token=None,
        session_idle_ns=12 * 3600 * 10**9,
        session_lifetime_ns=7 * 86400 * 10**9,
        roles=BUILT_IN_ROLES,
        users=(),
        oidc_issuer=None,
        oidc_client_id=None,
        oidc_client_secret=None,
        oidc_client_secret_file=None,
        oidc_scopes="openid profile email",
        oidc_groups_claim="groups",
        oidc_name_claim="preferred_username",
        oidc_label="single sign-on",
        read_only=False,
        hide_bodies=False,
        url_prefix="",
        trusted_proxies=(),
        allow_insecure=False,
        journal=None,
        journal_name="default",
        lease_ns=2_000_000_000,
        origins={},
        warnings=(),
    )


@pytest.mark.parametrize(
    ("argv", "field", "value"),
    [
        (["-b", "/var/lib/jobs"], "binlog_dir", "/var/lib/jobs"),
        (["-f", "0"], "sync_interval_ns", 0),
        (["-f100"], "sync_interval_ns", 100_000_000),
        (["-F"], "sync_interval_ns", None),
        (["-f", "never"], "sync_interval_ns", None),
        (["-s", "4096"], "binlog_max_size", 4096),
        (["-l", "::1"], "listen", ("::1",)),
        (["-lunix:/run/jobs.sock"], "listen", ("unix:/run/jobs.sock",)),
        (["-l", "::1", "-lunix:/run/jobs.sock"], "listen", ("::1", "unix:/run/jobs.sock")),
        (["-l", "::1, plain:localhost:11301"], "listen", ("::1", "plain:localhost:11301")),
        (["--tls-cert", "/etc/queue.pem"], "tls_cert", "/etc/queue.pem"),
        (["--max-jobs=1000"], "limits.jobs", 1000),
        (["--max-rate", "1000000"], "limits.rate", 1_000_000),
        (["--idle-timeout", "3600"], "limits.idle_timeout", 3600),
        (["-p", "0"], "port", 0),
        (["-p", "+11301"], "port", 11301),
        (["-p65535"], "port", 65535),
        (["-u", "nobody"], "user", "nobody"),
        (["-z", "0"], "max_job_size", 0),
        (["-z", str(GIB)], "max_job_size", GIB),
        (["-V"], "log_level", "debug"),
        (["-VV", "-V"], "log_level", "debug"),
        (["--log-level", "warning"], "log_level", "warning"),
        (["--log-format=json"], "log_format", "json"),
        (["--web-host", "localhost"], "web_host", "localhost"),
        (["--web-host=::1"], "web_host", "::1"),
        (["--web-host", "127.8.9.10"], "web_host", "127.8.9.10"),
        (["--web-port=0"], "web_port", 0),
        (["--no-web"], "web_enabled", False),
        (["--strict-recovery"], "strict_recovery", True),
        (["--strict-protocol"], "strict_protocol", True),
        (["--extended-stats"], "extended_stats", True),
        (["--journal", "postgresql://a@c/d"], "journal", "postgresql://a@c/d"),
        (["--journal-name=mail"], "journal_name", "mail"),
        (["--lease", "5"], "lease_ns", 5_000_000_000),
        (["--read-only"], "read_only", True),
        (["--hide-bodies"], "hide_bodies", True),
        (["--url-prefix", "/queue"], "url_prefix", "/queue"),
        (["--url-prefix=/a/b.c/~d_e-1/"], "url_prefix", "/a/b.c/~d_e-1"),
        (["--trusted-proxies", "10.0.0.0/8, ::1"], "trusted_proxies", (ip_network("10.0.0.0/8"), ip_network("::1"))),
    ],
)
def test_flag_sets_only_its_field(argv: list[str], field: str, value: object) -> None:
    parsed = options(*argv)
    assert parsed.value_of(field) == value
    assert parsed.origins.keys() == {field}
    fields = {row.field for row in DEFINITIONS if row.field}
    assert {each for each in fields if parsed.value_of(each) != options().value_of(each)} == {field}
    assert parsed.warnings == ()


def test_short_flags_can_be_bundled() -> None:
    parsed = options("-VFVp11301", "-Vl", "127.0.0.1")
    assert (parsed.sync_interval_ns, parsed.port, parsed.listen) == (None, 11301, ("127.0.0.1",))
    assert parsed.origins == {"log_level": "-V", "sync_interval_ns": "-F", "port": "-p", "listen": "-l"}


def test_value_may_look_like_a_flag() -> None:
    assert options("-b", "-F").binlog_dir == "-F"
    assert options("-b-F").binlog_dir == "-F"
    assert options("-u", "--no-web").web_enabled


@pytest.mark.parametrize(("argv", "value"), [(["-F", "-f", "7"], 7_000_000), (["-f", "7", "-F"], None)])
def test_last_of_f_and_F_wins(argv: list[str], value: int | None) -> None:  # noqa: N802  the flags' names
    assert options(*argv).sync_interval_ns == value


def test_last_of_repeated_flags_wins() -> None:
    assert options("-p", "1", "-p2").port == 2


@pytest.mark.parametrize(
    "argv", [["-v"], ["--version"], ["-Vv"], ["-vh"], ["-v", "-x"], ["-z", "1", "-v", "nonsense"], ["-vx"]]
)
def test_version(argv: list[str]) -> None:
    assert parse(argv, {"PORT": "nonsense"}) == Information(f"greenstalk-server {__version__} ({BUILD.name})\n")


@pytest.mark.parametrize("argv", [["-h"], ["--help"], ["-Vh"], ["-hv"], ["-h", "-x"]])
def test_help(argv: list[str]) -> None:
    assert parse(argv, {}) == Information(usage())


def test_help_names_every_option_and_fits_a_terminal() -> None:
    text = usage()
    for row in DEFINITIONS:
        for name in (*row.flags, row.variable, row.key, row.default if row.metavar and row.default else ""):
            assert name in text
    assert max(map(len, text.splitlines())) <= 108


def test_second_column_of_the_help_is_aligned() -> None:
    flags, variables = usage().partition("Options, as")[2].partition("\nEnvironment")[::2]
    for part, width in ((flags, 25), (variables.partition("\n\n")[0], 54)):
        rows = [line for line in part.splitlines() if line.startswith("  ")]
        aligned = re.compile(rf" .{{{width - 2}}} \S.*")
        alone = re.compile(r"  \S+ +\S+")  # its explanation is on the next line
        assert [row for row in rows if not aligned.fullmatch(row) and not alone.fullmatch(row)] == []


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["-x"], "unknown flag -x: greenstalk-server -h lists the flags"),
        (["-Vx"], "unknown flag -x in -Vx: greenstalk-server -h lists the flags"),
        (["-F-x"], "unknown flag -- in -F-x: greenstalk-server -h lists the flags"),
        (["-xv"], "unknown flag -x in -xv: greenstalk-server -h lists the flags"),
        (["--"], "unknown flag --: greenstalk-server -h lists the flags"),
        (["--web-prt", "1"], "unknown flag --web-prt: did you mean --web-port?"),
        (["-web-port", "1"], "unknown flag -w in -web-port: greenstalk-server -h lists the flags"),
        (["jobs"], "unknown argument jobs: only flags are allowed"),
        (["-"], "unknown argument -: only flags are allowed"),
        ([""], "unknown argument '': only flags are allowed"),
        (["-F", "two words"], "unknown argument 'two words': only flags are allowed"),
        (["--no-web=no"], "--no-web takes no value, not no"),
        (["-z", "abc"], "-z abc: must be a whole number of bytes, 0 or more" + SIZES),
        (["-z", ""], "-z '': must be a whole number of bytes, 0 or more" + SIZES),
        (["-z", "5 "], "-z '5 ': must be a whole number of bytes, 0 or more" + SIZES),
        (["-z10x"], "-z 10x: must be a whole number of bytes, 0 or more" + SIZES),
        (["-z", "-1"], "-z -1: must be a whole number of bytes, 0 or more" + SIZES),
        (["-z", "++1"], "-z ++1: must be a whole number of bytes, 0 or more" + SIZES),
        (["-z", "1_000"], "-z 1_000: must be a whole number of bytes, 0 or more" + SIZES),
        (["-z", "٣"], "-z ٣: must be a whole number of bytes, 0 or more" + SIZES),
        (["-s", "0x10"], "-s 0x10: must be a whole number of bytes, 0 or more" + SIZES),
        (["-f", "1.5"], "-f 1.5: must be a whole number of milliseconds, 0 (at every write) or more" + TIMES),
        (
            ["-f", "1", "-f", "-1"],
            "-f -1: must be a whole number of milliseconds, 0 (at every write) or more" + TIMES,
        ),
        (["--web-port", "65536"], "--web-port 65536: must be a port number from 0 (any free port) to 65535"),
        (["--web-port="], "--web-port '': must be a port number from 0 (any free port) to 65535"),
    ],
)
def test_error_names_the_flag_its_value_and_the_allowed_values(argv: list[str], message: str) -> None:
    error = refusal(*argv)
    assert (str(error), error.exit_code) == (message, 5)


@pytest.mark.parametrize("flag", [flag for row in DEFINITIONS if row.metavar for flag in row.flags])
def test_missing_value_names_its_flag(flag: str) -> None:
    error = refusal("-V", flag)
    assert str(error).startswith(f"{flag} needs a value: {flag} ")
    assert error.exit_code == 5


@pytest.mark.parametrize("text", ["abc", "-1", "65536", "11300x", "", "9" * 5000])
def test_bad_port_has_the_exit_code_of_a_failed_bind(text: str) -> None:
    error = refusal("-p", text)
    assert str(error).endswith(": must be a port number from 0 (any free port) to 65535")
    assert error.exit_code == 111


def test_empty_directory_name_has_the_exit_code_of_a_missing_directory() -> None:
    error = refusal("-b", "")
    assert (str(error), error.exit_code) == ("-b '': must be the path of a directory", 10)


def test_long_value_is_cut_in_the_message() -> None:
    assert len(str(refusal("-z", "x" * 100_000))) < 200


@pytest.mark.parametrize("flag", ["-c", "-n"])
def test_removed_flags_warn(flag: str) -> None:
    assert options(flag).warnings == (f"{flag} has no effect: the journal is always compacted",)


@pytest.mark.parametrize("text", [str(GIB + 1), "99999999999999999999"])
def test_job_size_above_1_gib_is_reduced_with_a_warning(text: str) -> None:
    parsed = options("-z", text)
    assert parsed.max_job_size == GIB
    assert parsed.warnings == (f"the maximum job size (-z) was reduced to {GIB}, the largest allowed",)


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("GREENSTALK_DATA_DIR", "/data", "binlog_dir", "/data"),
        ("GREENSTALK_LISTEN", "::1", "listen", ("::1",)),
        ("GREENSTALK_LISTEN", "::1,unix:/run/jobs.sock", "listen", ("::1", "unix:/run/jobs.sock")),
        ("GREENSTALK_MAX_JOB_SIZE", "100", "max_job_size", 100),
        ("GREENSTALK_WEB_HOST", "::1", "web_host", "::1"),
        ("PORT", "5000", "web_port", 5000),
        ("GREENSTALK_WEB_PASSWORD", "secret", "web_password", "secret"),
        ("GREENSTALK_WEB_PASSWORD_FILE", "/run/secret", "web_password_file", "/run/secret"),
        ("GREENSTALK_METRICS_TOKEN", "t0ken", "metrics_token", "t0ken"),
        ("GREENSTALK_API_TOKEN", "t0ken", "api_token", "t0ken"),
        ("GREENSTALK_API_OPERATOR_TOKEN", "t0ken", "api_operator_token", "t0ken"),
        ("GREENSTALK_API_VIEWER_TOKEN", "t0ken", "api_viewer_token", "t0ken"),
        ("GREENSTALK_WEB_OPERATOR_PASSWORD", "secret", "operator_password", "secret"),
        ("GREENSTALK_SESSION_IDLE", "1h", "session_idle_ns", 3600 * 10**9),
        ("GREENSTALK_SESSION_LIFETIME", "60", "session_lifetime_ns", 60 * 10**9),
        ("GREENSTALK_OIDC_SCOPES", "openid groups", "oidc_scopes", "openid groups"),
        ("GREENSTALK_OIDC_GROUPS_CLAIM", "roles", "oidc_groups_claim", "roles"),
        ("GREENSTALK_OIDC_NAME_CLAIM", "email", "oidc_name_claim", "email"),
        ("GREENSTALK_OIDC_LABEL", "Keycloak", "oidc_label", "Keycloak"),
        ("GREENSTALK_SYNC_MS", "7", "sync_interval_ns", 7_000_000),
        ("GREENSTALK_SYNC_MS", "never", "sync_interval_ns", None),
        ("GREENSTALK_JOURNAL_FILE_SIZE", "8192", "binlog_max_size", 8192),
        ("GREENSTALK_LISTEN_PORT", "11301", "port", 11301),
        ("GREENSTALK_USER", "nobody", "user", "nobody"),
        ("GREENSTALK_LOG_LEVEL", "error", "log_level", "error"),
        ("GREENSTALK_LOG_FORMAT", "json", "log_format", "json"),
        ("GREENSTALK_STRICT_RECOVERY", "on", "strict_recovery", True),
        ("GREENSTALK_STRICT_PROTOCOL", "on", "strict_protocol", True),
        ("GREENSTALK_EXTENDED_STATS", "on", "extended_stats", True),
        ("DATABASE_URL", "postgres://c/d", "journal", "postgres://c/d"),
        ("GREENSTALK_JOURNAL_NAME", "mail", "journal_name", "mail"),
        ("GREENSTALK_LEASE_SECONDS", "60", "lease_ns", 60_000_000_000),
        ("GREENSTALK_WEB_ENABLED", "no", "web_enabled", False),
        ("GREENSTALK_READ_ONLY", "1", "read_only", True),
        ("GREENSTALK_HIDE_BODIES", "yes", "hide_bodies", True),
        ("GREENSTALK_TLS_CERT", "/etc/queue.pem", "tls_cert", "/etc/queue.pem"),
        *((row.variable, "7", row.field, 7) for row in DEFINITIONS if "_MAX_" in row.variable),
        ("GREENSTALK_MEMORY_LIMIT", "100000000", "memory_limit", 100_000_000),
        ("GREENSTALK_IDLE_TIMEOUT", "0", "limits.idle_timeout", 0),
        ("GREENSTALK_COMMAND_TIMEOUT", "60", "limits.command_timeout", 60),
        ("GREENSTALK_DEAD_PEER_TIMEOUT", "2592000", "limits.dead_peer_timeout", 2_592_000),
        ("GREENSTALK_URL_PREFIX", "/queue", "url_prefix", "/queue"),
        ("GREENSTALK_TRUSTED_PROXIES", "127.0.0.1", "trusted_proxies", (ip_network("127.0.0.1"),)),
        ("GREENSTALK_ALLOW_INSECURE", "1", "allow_insecure", True),
        ("GREENSTALK_READ_ONLY", "No", "read_only", False),
    ],
)
def test_variable_sets_its_field(variable: str, text: str, field: str, value: object) -> None:
    parsed = options(**{variable: text})
    assert parsed.value_of(field) == value
    assert parsed.origins == {field: variable}


def test_user_and_viewer_password_set_their_fields() -> None:
    parsed = options(GREENSTALK_WEB_USER="ada", **ADMIN, **VIEWER)
    assert (parsed.web_user, parsed.web_password, parsed.viewer_password) == ("ada", "pa55word", "l00k")
    assert parsed.warnings == ()


def test_every_variable_is_tested_above() -> None:
    (parametrize,) = test_variable_sets_its_field.pytestmark  # type: ignore[attr-defined]
    tested = {case[0] for case in parametrize.args[1]} | {"GREENSTALK_WEB_USER", "GREENSTALK_WEB_VIEWER_PASSWORD"}
    tested |= PROVIDER.keys() | {"GREENSTALK_OIDC_CLIENT_SECRET_FILE"}
    tested |= {"GREENSTALK_CONFIG", "GREENSTALK_TLS_KEY", "GREENSTALK_TLS_CLIENT_CA"}  # test_config_file.py
    assert tested == {row.variable for row in DEFINITIONS if row.variable}


def test_repr_of_options_has_no_secrets() -> None:
    parsed = options(**ADMIN, **VIEWER, **SCRAPER, **PROGRAMS, **PROVIDER)
    for secret in ("pa55word", "l00k", "t0ken", "pr0gram", "st4ts", "cl1ent"):
        assert secret not in repr(parsed)


def test_password_of_a_database_is_not_shown() -> None:
    url = "postgresql://ada:pa55word@db/jobs"
    parsed = options("--journal", url)
    assert parsed.journal == url
    assert "pa55word" not in repr(parsed) + as_json(parsed) + as_table(parsed)
    assert "postgresql://ada:***@db/jobs" in as_table(parsed)
    for bad in ("mysql://ada:pa55word@db/jobs", "mysql://db/jobs?user=ada&password=pa55word"):
        message = str(refusal("--journal", bad))
        assert message.startswith("--journal mysql://") and "***" in message and "pa55word" not in message


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://ada:pa55word@db/jobs", "postgresql://ada:***@db/jobs"),
        ("postgresql://ada:pa55@word/a?b&c@db/jobs", "postgresql://ada:***@db/jobs"),
        ("postgresql://ada:pa55word", "postgresql://ada:***"),
        ("postgresql://ada@db/jobs?password=pa55@word&port=1", "postgresql://ada@db/jobs?password=***&port=1"),
        (
            "postgresql://db/jobs?sslpassword=pa55&sslmode=require",
            "postgresql://db/jobs?sslpassword=***&sslmode=require",
        ),
        ("postgresql://ada@db:5433/jobs", "postgresql://ada@db:5433/jobs"),
        ("postgresql:/ada:pa55word@db/jobs", "postgresql:/ada:***@db/jobs"),
        ("host=db user=ada password=pa55word", "host=db user=ada password=***"),
        ("password = 'pa55 word' host=db", "password =***"),
        ("unix:/run/queue:1", "unix:/run/queue:1"),
    ],
)
def test_password_is_removed_from_a_url(url: str, expected: str) -> None:
    assert without_password(url) == expected


def test_server_has_one_journal() -> None:
    message = "--journal: must not be set together with -b: a server has one journal"
    assert str(refusal("-b", "data", "--journal", "postgresql://c/d")) == message
    parsed = options("-b", "data", DATABASE_URL="postgresql://c/d")
    assert (parsed.binlog_dir, parsed.journal) == ("data", None)
    assert parsed.warnings == ("DATABASE_URL is not used: the journal is in data",)


def test_strict_server_has_no_extended_stats() -> None:
    message = "--extended-stats: must not be set together with GREENSTALK_STRICT_PROTOCOL: beanstalkd has no such keys"
    assert str(refusal("--extended-stats", GREENSTALK_STRICT_PROTOCOL="1")) == message


@pytest.mark.parametrize(("flag", "is_ignored"), [("-f0", False), ("-f50", True), ("-F", True)])
def test_sync_interval_is_ignored_with_a_journal_in_postgresql(flag: str, is_ignored: bool) -> None:
    warnings = options(flag, "--journal", "postgresql://c/d").warnings
    assert [warning.startswith(f"{flag[:2]} is ignored") for warning in warnings] == [True] * is_ignored


def test_password_on_the_command_line_logs_a_warning() -> None:
    """The password is part of a URL, which is the value of a flag."""
    url = "postgresql://ada:pa55word@db/jobs"
    (warning,) = options("--journal", url).warnings
    assert warning.startswith("--journal: every user of this machine can read the password in it; set DATABASE_URL")
    assert options(DATABASE_URL=url).warnings == options("--journal", "postgresql://ada@db/jobs").warnings == ()


def test_no_flag_takes_a_secret() -> None:
    """Every user of a machine can read the command lines of its processes."""
    secrets = [row for row in DEFINITIONS if row.is_secret]
    assert {row.field for row in secrets} == {
        "web_password",
        "operator_password",
        "viewer_password",
        "oidc_client_secret",
        *TOKENS,
    }
    assert {row.flags for row in secrets} == {()}


def test_provider_sets_its_fields() -> None:
    parsed = options(**PROVIDER)
    assert (parsed.oidc_issuer, parsed.oidc_client_id, parsed.oidc_client_secret) == tuple(PROVIDER.values())
    assert parsed.needs_login
    (warning,) = parsed.warnings
    assert "no role has groups" in warning
    kept = {key: value for key, value in PROVIDER.items() if key != "GREENSTALK_OIDC_CLIENT_SECRET"}
    kept["GREENSTALK_OIDC_CLIENT_SECRET_FILE"] = "/run/x"  # noqa: S105  a path
    assert options(**kept).oidc_client_secret_file == "/run/x"  # noqa: S105  a path


@pytest.mark.parametrize(
    "issuer",
    ["http://login.example.com", "ftp://localhost", "https://", "login.example.com", "https://a/?b", "https://a/#b",
     "https://me:x@login.example.com", "http://127.evil.example@10.0.0.1/", "https://a b/"],
)  # fmt: skip
def test_issuer_is_refused(issuer: str) -> None:
    error = str(refusal(**PROVIDER | {"GREENSTALK_OIDC_ISSUER": issuer}))
    assert "must be an address that begins with https://" in error


@pytest.mark.parametrize("issuer", ["https://login.example.com", "http://localhost:9000", "http://127.0.0.1:9000/a"])
def test_issuer_is_accepted(issuer: str) -> None:
    assert options(**PROVIDER | {"GREENSTALK_OIDC_ISSUER": issuer}).oidc_issuer == issuer


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"GREENSTALK_OIDC_CLIENT_ID": "queue"}, "GREENSTALK_OIDC_CLIENT_ID: must not be set without"),
        ({"GREENSTALK_OIDC_ISSUER": "https://a"}, "GREENSTALK_OIDC_ISSUER: must not be set without"),
        (PROVIDER | {"GREENSTALK_OIDC_CLIENT_SECRET_FILE": "f"}, "_FILE: must not be set together with"),
        (PROVIDER | {"GREENSTALK_OIDC_SCOPES": "email"}, "GREENSTALK_OIDC_SCOPES: must contain openid"),
        ({"GREENSTALK_SESSION_IDLE": "59"}, "from 60 to 31536000"),
        ({"GREENSTALK_WEB_OPERATOR_PASSWORD": "x", "GREENSTALK_WEB_PASSWORD": "x"}, "must differ from the admin"),
        ({"GREENSTALK_WEB_OPERATOR_PASSWORD": "x", "GREENSTALK_WEB_VIEWER_PASSWORD": "x"}, "from the operator"),
    ],
)
def test_incomplete_sign_in_is_refused(environ: dict[str, str], message: str) -> None:
    assert message in str(refusal(**environ))


def test_viewer_password_without_admin_password_warns() -> None:
    parsed = options(**VIEWER)
    (warning,) = parsed.warnings
    assert warning.startswith("GREENSTALK_WEB_VIEWER_PASSWORD is set without GREENSTALK_WEB_PASSWORD: nobody can")
    assert not options(**VIEWER, **ADMIN_FILE).warnings


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {"GREENSTALK_WEB_PASSWORD": "a", "GREENSTALK_WEB_PASSWORD_FILE": "f"},
            "GREENSTALK_WEB_PASSWORD_FILE: must not be set together with GREENSTALK_WEB_PASSWORD",
        ),
        (
            {"GREENSTALK_WEB_USER": "ada", "GREENSTALK_WEB_VIEWER_PASSWORD": "b"},
            "GREENSTALK_WEB_USER: must not be set without GREENSTALK_WEB_PASSWORD",
        ),
        (
            {"GREENSTALK_WEB_USER": "a:b", "GREENSTALK_WEB_PASSWORD": "a"},
            "GREENSTALK_WEB_USER: must not contain a colon, which no browser can send",
        ),
        (
            {"GREENSTALK_WEB_PASSWORD": "a", "GREENSTALK_WEB_VIEWER_PASSWORD": "a"},
            "GREENSTALK_WEB_VIEWER_PASSWORD: must differ from the admin password",
        ),
    ],
)
def test_contradictory_passwords_are_refused(environ: dict[str, str], message: str) -> None:
    error = refusal(**environ)
    assert (str(error), error.exit_code) == (message, 5)


@pytest.mark.parametrize("token", ["a b", "tök", "a\n", " a"])
def test_token_that_no_header_can_carry_is_refused_and_not_shown(token: str) -> None:
    error = refusal(GREENSTALK_METRICS_TOKEN=token)
    assert (str(error), error.exit_code) == (
        "GREENSTALK_METRICS_TOKEN: must be visible ASCII characters: no HTTP header can carry others",
        5,
    )


@pytest.mark.parametrize("first", ["GREENSTALK_API_TOKEN", "GREENSTALK_API_VIEWER_TOKEN"])
def test_equal_tokens_are_refused(first: str) -> None:
    error = refusal(**{first: "t0ken"}, **SCRAPER)
    assert str(error) == f"GREENSTALK_METRICS_TOKEN: must differ from {first}, which grants different access"


def test_token_does_not_protect_the_pages() -> None:
    error = refusal("--web-host", "0.0.0.0", GREENSTALK_API_TOKEN="t0ken")  # noqa: S106
    assert str(error) == (
        "--web-host 0.0.0.0: must be a loopback address while the dashboard has no password"
        " (GREENSTALK_API_TOKEN does not protect the pages);"
        " set GREENSTALK_WEB_PASSWORD, or GREENSTALK_ALLOW_INSECURE=1 to open it to everyone"
    )


@pytest.mark.parametrize("text", ["", "/"])
def test_slash_means_no_url_prefix(text: str) -> None:
    assert options("--url-prefix", text).url_prefix == ""


@pytest.mark.parametrize("text", ["queue", "//queue", "/a//b", "/a/..", "/./a", "/ä", "/a b", "/a?b", "http://x/"])
def test_url_prefix_that_is_not_a_plain_path_is_refused(text: str) -> None:
    assert str(refusal("--url-prefix", text)).endswith(": must be a path such as /queue, of letters, digits and -._~")


@pytest.mark.parametrize("text", ["localhost", "10.0.0.1/8", "10.0.0", "1.2.3.4,", "1.2.3.4;::1", "*"])
def test_invalid_trusted_proxies_are_refused(text: str) -> None:
    message = ": must be a comma-separated list of addresses and networks, such as 10.0.0.0/8,::1"
    assert str(refusal("--trusted-proxies", text)).endswith(message)


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("GREENSTALK_WEB_PASSWRD", "did you mean GREENSTALK_WEB_PASSWORD?"),
        ("GREENSTALK_LISTEN_PRT", "did you mean GREENSTALK_LISTEN_PORT?"),
        ("GREENSTALK_PORT", "did you mean GREENSTALK_LISTEN_PORT?"),
        ("GREENSTALK_MAX_JOB", "did you mean GREENSTALK_MAX_JOBS?"),
        ("GREENSTALK_XYZZY", "greenstalk-server -h lists the variables"),
    ],
)
@pytest.mark.parametrize("words", [(), ("config",), ("handover", "--journal", "postgresql:///")])
def test_unknown_variable_is_refused_with_the_nearest_one(words: tuple[str, ...], variable: str, hint: str) -> None:
    error = refusal(*words, **{variable: "11300"})
    assert (str(error), error.exit_code) == (f"unknown variable {variable}: {hint}", 5)


def test_check_reports_unknown_variables_with_other_mistakes() -> None:
    environ = {"GREENSTALK_SYNC_MS": "x", "GREENSTALK_USR": "nobody"}
    checked = parse(["config", "--check", "--color"], environ)
    assert isinstance(checked, CheckConfig)
    assert [str(error).partition(":")[0] for error in checked.problems] == [
        "unknown flag --color",
        "GREENSTALK_SYNC_MS x",
        "unknown variable GREENSTALK_USR",
    ]


@pytest.mark.parametrize("service", ["GREENSTALK", "GREENSTALK_SERVER", "GREENSTALK_WEB"])
def test_variables_that_kubernetes_sets_for_a_service_are_ignored(service: str) -> None:
    ports = {"PORT": "tcp://10.0.0.1:11300", "SERVICE_HOST": "10.0.0.1", "SERVICE_PORT": "11300",
             "SERVICE_PORT_BEANSTALK": "11300", "PORT_11300_TCP": "tcp://10.0.0.1:11300",
             "PORT_11300_TCP_PROTO": "tcp", "PORT_11300_TCP_PORT": "11300",
             "PORT_11300_TCP_ADDR": "10.0.0.1"}  # fmt: skip
    assert options(**{f"{service}_{name}": value for name, value in ports.items()}) == options()


def test_other_variables_of_the_project_are_ignored() -> None:
    environ = {"GREENSTALK_PURE": "1", "GREENSTALK_COMPILE": "1", "GREENSTALK_EMPTY": "", "GREENSTALKCTL_API": "x"}
    assert options(**environ) == options()


def test_variable_that_the_file_names_is_known(tmp_path: Path) -> None:
    file = tmp_path / "greenstalk.toml"
    file.write_text('[servers.b]\nurl = "https://b.example/"\ntoken_env = "GREENSTALK_TOKEN_OF_B"\n')
    assert options("--config", str(file), GREENSTALK_TOKEN_OF_B="x").servers  # noqa: S106


def test_flag_overrides_the_environment() -> None:
    parsed = options("--web-port", "1", PORT="2")
    assert parsed.web_port == 1
    assert options("--web-port", "1", PORT="nonsense that is never read").web_port == 1


def test_empty_variable_counts_as_absent() -> None:
    assert options(PORT="", GREENSTALK_WEB_PASSWORD="") == options()


@pytest.mark.parametrize(
    ("variable", "text", "message", "exit_code"),
    [
        ("PORT", "http", "PORT http: must be a port number from 0 (any free port) to 65535", 5),
        (
            "GREENSTALK_LOG_LEVEL",
            "verbose",
            "GREENSTALK_LOG_LEVEL verbose: must be debug, info, warning or error",
            5,
        ),
        (
            "GREENSTALK_ALLOW_INSECURE",
            "maybe",
            "GREENSTALK_ALLOW_INSECURE maybe: must be 1, true, yes or on; or 0, false, no or off",
            5,
        ),
        (
            "GREENSTALK_MAX_JOB_SIZE",
            "1P",
            "GREENSTALK_MAX_JOB_SIZE 1P: must be a whole number of bytes, 0 or more" + SIZES,
            5,
        ),
    ],
)
def test_bad_variable_is_named(variable: str, text: str, message: str, exit_code: int) -> None:
    error = refusal(**{variable: text})
    assert (str(error), error.exit_code) == (message, exit_code)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com", ""])
def test_open_dashboard_on_the_network_is_refused(host: str) -> None:
    error = refusal("--web-host", host)
    assert error.exit_code == 5
    for name in ("--web-host", host, "loopback", "GREENSTALK_WEB_PASSWORD", "GREENSTALK_ALLOW_INSECURE"):
        assert name in str(error)


@pytest.mark.parametrize(
    "environ",
    [
        {"GREENSTALK_WEB_PASSWORD": "secret"},
        {"GREENSTALK_WEB_PASSWORD_FILE": "/run/secret"},
        {"GREENSTALK_WEB_VIEWER_PASSWORD": "look"},
        {"GREENSTALK_ALLOW_INSECURE": "yes"},
    ],
)
def test_dashboard_on_the_network_needs_a_password_or_the_insecure_option(environ: dict[str, str]) -> None:
    assert options("--web-host", "0.0.0.0", **environ).web_host == "0.0.0.0"


def test_address_of_a_disabled_dashboard_is_not_checked() -> None:
    assert not options("--no-web", "--web-host", "0.0.0.0").web_enabled


# Commands


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["journal", "check", "d"], JournalCheck("d")),
        (["journal", "export", "d"], JournalExport("d", None)),
        (["journal", "export", "d", "-o", "f"], JournalExport("d", "f")),
        (["journal", "import", "d"], JournalImport("d", None)),
        (["journal", "import", "d", "f"], JournalImport("d", "f")),
        (["config"], ShowConfig(options(), is_json=False)),
        (["config", "--json", "-p1"], ShowConfig(options("-p1"), is_json=True)),
        (["handover", "--journal", "postgresql://c/d"], Handover(options("--journal", "postgresql://c/d"))),
        (["handover", "-h"], Information(usage())),
        (["hash-password"], HashPassword()),
        (["hash-password", "--help"], Information(usage())),
        (["config", "-v"], Information(f"greenstalk-server {__version__} ({BUILD.name})\n")),
        (["config", "--help"], Information(usage())),
        (["journal", "-h"], Information(usage())),
    ],
)
def test_commands_are_parsed(argv: list[str], command: Command) -> None:
    assert parse(argv, {}) == command


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["export"],
        ["export", ""],
        ["export", "-o", "f"],
        ["export", "d", "f"],
        ["export", "d", "-o"],
        ["export", "d", "-o", ""],
        ["import", "d", "f", "g"],
        ["import", "d", "-f"],
        ["import", "d", ""],
        ["check", "d", "e"],
        ["dump", "d"],
    ],
)
def test_unknown_verb_of_journal_is_refused(argv: list[str]) -> None:
    error = refusal("journal", *argv)
    assert str(error).endswith(
        ": must be `journal check DIR`, `journal export DIR [-o FILE] [-q]` or `journal import DIR [FILE]`"
    )
    assert error.exit_code == 5


def test_hash_password_takes_no_arguments() -> None:
    assert str(refusal("hash-password", "sesame")).startswith("hash-password: takes no arguments")


def test_handover_needs_a_journal() -> None:
    assert str(refusal("handover")) == "handover: set --journal to the database that the servers share"


def test_bad_option_of_config_is_refused() -> None:
    assert str(refusal("config", "--jsn")) == "unknown flag --jsn: greenstalk-server -h lists the flags"


# Units

SIZE_OPTIONS = {
    "binlog_max_size": ("-s", "GREENSTALK_JOURNAL_FILE_SIZE"),
    "max_job_size": ("-z", "GREENSTALK_MAX_JOB_SIZE"),
    "limits.bytes": ("--max-bytes", "GREENSTALK_MAX_BYTES"),
    "memory_limit": ("--memory-limit", "GREENSTALK_MEMORY_LIMIT"),
    "limits.tube_bytes": ("--max-tube-bytes", "GREENSTALK_MAX_TUBE_BYTES"),
    "limits.output": ("--max-output", "GREENSTALK_MAX_OUTPUT"),
}
TIME_OPTIONS = {
    "sync_interval_ns": ("-f", "GREENSTALK_SYNC_MS", 10**6, 1),
    "lease_ns": ("--lease", "GREENSTALK_LEASE_SECONDS", 10**9, 1),
    "limits.idle_timeout": ("--idle-timeout", "GREENSTALK_IDLE_TIMEOUT", 1, 10**9),
    "limits.command_timeout": ("--command-timeout", "GREENSTALK_COMMAND_TIMEOUT", 1, 10**9),
    "limits.dead_peer_timeout": ("--dead-peer-timeout", "GREENSTALK_DEAD_PEER_TIMEOUT", 1, 10**9),
}
"""By field: flag, variable, unit of a plain number in units of the field, and unit of the field in nanoseconds."""


def read_key(key: str, value: str, path: Path) -> Options:
    """Return the options of a file in which *key* has *value*, in TOML."""
    path.write_text(f"{key} = {value}\n")
    return options("--config", str(path))


def test_every_size_and_time_is_tested_below() -> None:
    fields = {row.field for row in DEFINITIONS if row.metavar in ("BYTES", "MS", "SECONDS")}
    assert fields == SIZE_OPTIONS.keys() | TIME_OPTIONS.keys()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("268435456", 2**28),
        ("+268435456", 2**28),
        ("262144k", 2**28),
        ("262144K", 2**28),
        ("262144KB", 2**28),
        ("262144KiB", 2**28),
        ("256m", 2**28),
        ("256MB", 2**28),
        ("256MiB", 2**28),
        ("1g", 2**30),
        ("1GB", 2**30),
        ("1GiB", 2**30),
    ],
)
@pytest.mark.parametrize("field", SIZE_OPTIONS)
def test_size_may_have_a_unit(field: str, text: str, size: int, tmp_path: Path) -> None:
    flag, variable = SIZE_OPTIONS[field]
    key = next(row.key for row in DEFINITIONS if row.field == field)
    in_file = text.removeprefix("+") if text.removeprefix("+").isdigit() else f'"{text}"'
    found = (options(flag, text), options(**{variable: text}), read_key(key, in_file, tmp_path / "file.toml"))
    assert [one.value_of(field) for one in found] == [size] * 3


@pytest.mark.parametrize("text", ["1.5G", "10 M", "M", "10x", "1kk", "10b", "10ki", "1e3", "9" * 5000 + "k", "-1k"])
@pytest.mark.parametrize("field", SIZE_OPTIONS)
def test_size_with_a_wrong_unit_is_refused(field: str, text: str, tmp_path: Path) -> None:
    flag, variable = SIZE_OPTIONS[field]
    row = next(row for row in DEFINITIONS if row.field == field)
    shown_text = text if len(text) < 60 else text[:60] + "…"
    shown_text = f"'{shown_text}'" if " " in shown_text else shown_text
    for refused, name in ((refusal(f"{flag}", text), flag), (refusal(**{variable: text}), variable)):
        assert str(refused).startswith(f"{name} {shown_text}: must be a whole number of bytes, ")
        assert "as in 64k, 10MB or 2GiB (k is 1024)" in str(refused)
    with pytest.raises(UsageError, match=re.escape(f"{row.key} {shown_text}: must be a whole number of bytes")):
        read_key(row.key, f'"{text}"', tmp_path / "file.toml")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("2m", 120), ("1h", 3600), ("59m60s", 3600), ("1m30s", 90), ("2000ms", 2), ("1m1s1000ms", 62)],
)
@pytest.mark.parametrize("field", TIME_OPTIONS)
def test_time_may_have_units(field: str, text: str, seconds: int, tmp_path: Path) -> None:
    flag, variable, _, size = TIME_OPTIONS[field]
    key = next(row.key for row in DEFINITIONS if row.field == field)
    found = (options(flag, text), options(**{variable: text}), read_key(key, f'"{text}"', tmp_path / "file.toml"))
    assert [one.value_of(field) for one in found] == [seconds * 10**9 // size] * 3


@pytest.mark.parametrize("field", TIME_OPTIONS)
def test_plain_number_has_the_default_unit(field: str, tmp_path: Path) -> None:
    flag, variable, unit, _ = TIME_OPTIONS[field]
    key = next(row.key for row in DEFINITIONS if row.field == field)
    found = (options(flag, "7"), options(**{variable: "7"}), read_key(key, "7", tmp_path / "file.toml"))
    assert [one.value_of(field) for one in found] == [7 * unit] * 3


@pytest.mark.parametrize("text", ["1.5s", "1 s", "s", "30s1m", "1s1s", "1M", "1w", "-1s", "1us", ""])
@pytest.mark.parametrize("field", TIME_OPTIONS)
def test_time_with_wrong_units_is_refused(field: str, text: str) -> None:
    flag = TIME_OPTIONS[field][0]
    refused = str(refusal(flag, text))
    assert refused.startswith(f"{flag} ")
    assert "as in 50ms, 90s or 1h30m" in refused


@pytest.mark.parametrize("flag", ["--idle-timeout", "--command-timeout", "--dead-peer-timeout"])
def test_timeout_of_fractional_seconds_is_refused(flag: str) -> None:
    assert "must be a whole number of seconds" in str(refusal(flag, "1500ms"))
    assert "must be a whole number of seconds" in str(refusal(flag, "31d"))


def test_values_shown_by_config_can_be_read_back(tmp_path: Path) -> None:
    original = options(
        "-s", "10M", "-f", "1m", "--lease", "1500ms", "--idle-timeout", "1h30m", "--memory-limit", "1500M"
    )
    settings = json.loads(as_json(original))["settings"]
    lines = {key: one["value"] for key, one in settings.items() if one["origin"] != "default"}
    assert lines["lease_seconds"] == "1500ms"
    path = tmp_path / "file.toml"
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items()))
    again = options("--config", str(path))
    fields = ("binlog_max_size", "sync_interval_ns", "lease_ns", "limits.idle_timeout", "memory_limit")
    assert [again.value_of(field) for field in fields] == [original.value_of(field) for field in fields]
