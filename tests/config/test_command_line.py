"""Parsing of options from the command line and the environment; tests/cli starts the real command."""

from __future__ import annotations

import json
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path

import pytest

from greenstalk_server.config.command_line import (
    Command,
    Handover,
    HashPassword,
    Information,
    JournalCheck,
    JournalExport,
    JournalImport,
    ShowConfig,
    ShowVersion,
    parse,
    usage,
)
from greenstalk_server.config.definitions import DEFINITIONS, Definition, Kind
from greenstalk_server.config.options import Options, UsageError
from greenstalk_server.config.show import as_json, as_table
from greenstalk_server.config.text import without_password
from greenstalk_server.config.validation import TOKENS
from greenstalk_server.core.tube_shards import Pin

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


DATABASE = {"DATABASE_URL": "postgresql://a@c/d"}
CERTIFICATE = {"GREENSTALK_TLS_CERT": "cert.pem"}
LINK = DATABASE | {"GREENSTALK_LINK": "127.0.0.1:0"}
LINK_CERTIFICATE = LINK | {"GREENSTALK_LINK_CERT": "cert.pem", "GREENSTALK_LINK_CA": "ca.pem"}


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


def test_defaults_match_beanstalkd_and_the_dashboard_is_local() -> None:
    parsed = options()
    assert (parsed.listen, parsed.port, parsed.max_job_size) == (("0.0.0.0",), 11300, 65535)
    assert (parsed.data_dir, parsed.journal_file_size, parsed.sync_interval_ns) == (None, 10_485_760, 50_000_000)
    assert (parsed.web_enabled, parsed.web_host, parsed.web_port) == (True, "127.0.0.1", 8080)
    assert (parsed.origins, parsed.warnings) == ({}, ())


SAMPLES: dict[str, tuple[str, object]] = {
    "sync_interval_ns": ("7", 7_000_000),
    "journal": ("postgresql://a@c/d", "postgresql://a@c/d"),
    "lease_ns": ("5", 5_000_000_000),
    "link": ("[::1]:11310", "[::1]:11310"),
    "link_listen": ("0.0.0.0:11310", "0.0.0.0:11310"),
    "outage_wait_ns": ("5", 5_000_000_000),
    "listen": ("::1", ("::1",)),
    "memory_limit": ("100000000", 100_000_000),
    "log_level": ("warning", "warning"),
    "log_format": ("json", "json"),
    "web_host": ("localhost", "localhost"),
    "url_prefix": ("/a/b.c/~d_e-1/", "/a/b.c/~d_e-1"),
    "trusted_proxies": ("10.0.0.0/8, ::1", (ip_network("10.0.0.0/8"), ip_network("::1"))),
    "allow_insecure": ("yes", True),
    "session_idle_ns": ("3600", 3600 * 10**9),
    "session_lifetime_ns": ("3600", 3600 * 10**9),
    "oidc_issuer": ("https://login.example.com", "https://login.example.com"),
    "oidc_scopes": ("openid groups", "openid groups"),
    "pins": ("mail.*,failed=0", (Pin(("mail.*", "failed"), 0),)),
}
"""By field: a value as text, and the value of the field. Other fields accept any number, or any text."""

NEEDS: dict[str, dict[str, str]] = {
    **dict.fromkeys(("web_user", "operator_password", "viewer_password"), ADMIN),
    **dict.fromkeys(("tls_key", "tls_client_ca"), CERTIFICATE),
    **dict.fromkeys(("oidc_issuer", "oidc_client_id", "oidc_client_secret"), PROVIDER),
    "link": DATABASE,
    **dict.fromkeys(("link_cert", "link_key", "link_ca"), LINK_CERTIFICATE),
    **dict.fromkeys(("shards", "link_listen"), LINK),
    "oidc_client_secret_file": {key: PROVIDER[key] for key in list(PROVIDER)[:2]},
}
"""By field: the variables without which the field is refused."""


def sample(row: Definition) -> tuple[str, object]:
    """Return a value for *row* as text, and the value that its field gets."""
    if row.kind is Kind.SWITCH:
        return row.implies, row.type.read(row.implies)
    return SAMPLES.get(row.field, ("7", 7) if int in row.type.toml_types else ("seven", "seven"))


def in_file(row: Definition, text: str) -> str:
    """Return lines of a configuration file that set *row*, the second one its key."""
    table, _, key = row.key.rpartition(".")
    kinds = row.type.toml_types
    value = text if int in kinds else json.dumps(text)
    if bool in kinds:
        value = json.dumps(row.type.read(text))
    elif kinds == (list,):
        value = json.dumps(text.split(", "))
    return f"{f'[{table}]' if table else ''}\n{key} = {value}\n"


@pytest.mark.parametrize(
    "row", [row for row in DEFINITIONS if row.field and (row.flags or row.variable)], ids=lambda row: row.field
)
def test_flag_variable_and_key_set_their_field_alone(row: Definition, tmp_path: Path) -> None:
    path = tmp_path / "greenstalk.toml"
    path.touch(mode=0o600)
    text, value = sample(row) if row.field != "config_file" else (str(path), str(path))
    others = {name: each for name, each in NEEDS.get(row.field, {}).items() if name != row.variable}
    fields = {each.field for each in DEFINITIONS if each.field}
    found: dict[str, Options] = {}
    for flag in row.flags:
        takes_value = row.kind is Kind.VALUE
        found[flag] = options(*([flag, text] if takes_value else [flag]), **others)
        if takes_value:
            assert options(f"{flag}={text}" if flag.startswith("--") else f"{flag}{text}", **others) == found[flag]
    if row.variable:
        found[row.variable] = options(**others, **{row.variable: text})
    if row.key:
        path.write_text(in_file(row, text))
        found[f"{path}:2"] = options("--config", str(path), **others)
    for origin, parsed in found.items():
        assert (parsed.value_of(row.field), parsed.origins[row.field]) == (value, origin)
        assert parsed.origins.keys() - {row.field} <= {
            each.field for each in DEFINITIONS if each.variable in others
        } | {"config_file"}
        unset = fields - parsed.origins.keys()
        assert [field for field in unset if parsed.value_of(field) != options().value_of(field)] == []


def test_short_flags_can_be_bundled() -> None:
    parsed = options("-VFVp11301", "-Vl", "127.0.0.1")
    assert (parsed.sync_interval_ns, parsed.port, parsed.listen) == (None, 11301, ("127.0.0.1",))
    assert parsed.origins == {"log_level": "-V", "sync_interval_ns": "-F", "port": "-p", "listen": "-l"}


def test_value_may_look_like_a_flag() -> None:
    assert options("-b", "-F").data_dir == "-F"
    assert options("-b-F").data_dir == "-F"
    assert options("-u", "--no-web").web_enabled


@pytest.mark.parametrize(("argv", "value"), [(["-F", "-f", "7"], 7_000_000), (["-f", "7", "-F"], None)])
def test_last_of_f_and_F_wins(argv: list[str], value: int | None) -> None:  # noqa: N802  the flags' names
    assert options(*argv).sync_interval_ns == value


def test_last_of_repeated_flags_wins_and_addresses_add_up() -> None:
    assert options("-p", "1", "-p+2").port == 2
    assert options("-VV", "-V").log_level == "debug"
    assert options("-l", "::1, unix:/a", "-lplain:b:1").listen == ("::1", "unix:/a", "plain:b:1")
    assert options("--web-host", "127.8.9.10").web_host == "127.8.9.10"


@pytest.mark.parametrize(("text", "is_set"), [("1", True), ("yes", True), ("on", True), ("No", False), ("0", False)])
def test_words_of_a_boolean(text: str, is_set: bool) -> None:
    assert options(GREENSTALK_READ_ONLY=text).read_only == is_set


@pytest.mark.parametrize(
    "argv", [["-v"], ["--version"], ["-Vv"], ["-vh"], ["-v", "-x"], ["-z", "1", "-v", "nonsense"], ["-vx"]]
)
def test_version(argv: list[str]) -> None:
    assert parse(argv, {"PORT": "nonsense"}) == ShowVersion()


@pytest.mark.parametrize("argv", [["-h"], ["--help"], ["-Vh"], ["-hv"], ["-h", "-x"]])
def test_help(argv: list[str]) -> None:
    assert parse(argv, {}) == Information(usage())


def test_help_names_every_option_and_fits_a_terminal() -> None:
    text = usage()
    for row in DEFINITIONS:
        for name in (*row.flags, row.variable, row.key, row.default if row.metavar and row.default else ""):
            assert name in text
    assert max(map(len, text.splitlines())) <= 108


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
        (["-z", "-1"], "-z -1: must be a whole number of bytes, 0 or more" + SIZES),
        (["-z", "٣"], "-z ٣: must be a whole number of bytes, 0 or more" + SIZES),
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


@pytest.mark.parametrize("flag", ["-c", "-n"])
def test_removed_flags_warn(flag: str) -> None:
    assert options(flag).warnings == (f"{flag} has no effect: the journal is always compacted",)


@pytest.mark.parametrize("text", [str(GIB + 1), "99999999999999999999"])
def test_job_size_above_1_gib_is_reduced_with_a_warning(text: str) -> None:
    parsed = options("-z", text)
    assert parsed.max_job_size == GIB
    assert parsed.warnings == (f"the maximum job size (-z) was reduced to {GIB}, the largest allowed",)


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
    assert (parsed.data_dir, parsed.journal) == ("data", None)
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
     "https://me:x@login.example.com", "http://127.evil.example@10.0.0.1/", "http://127.evil.example/",
     "https://a b/", "https://["],
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


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--link", "app1:1"], "--link app1:1: must be a loopback address without --link-cert"),
        (["--link", "127.0.0.1:0", "--link-cert", "a"], "--link-cert: must not be set without --link-ca"),
        (["--link", "127.0.0.1:0", "--link-ca", "a"], "--link-ca: must not be set without --link-cert"),
        (["--link-cert", "a", "--link-ca", "a"], "--link-cert: must not be set without --link"),
        (["--link-listen", "a:1"], "--link-listen: must not be set without --link"),
        (["--link", "0.0.0.0:1"], "--link 0.0.0.0:1: must be HOST:PORT or [ADDRESS]:PORT, with a host that"),
        (["--link", "::1:1"], "--link ::1:1: must be HOST:PORT or [ADDRESS]:PORT, with a host that"),
        (["--link", "127.0.0.1:0", "--link-listen", "127.0.0.1"], "--link-listen 127.0.0.1: must be HOST:PORT or"),
    ],
)
def test_unusable_links_are_refused(argv: list[str], message: str) -> None:
    assert str(refusal(*argv, **DATABASE)).startswith(message)


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


@pytest.mark.parametrize("service", ["GREENSTALK", "GREENSTALK_SERVER", "GREENSTALK_WEB"])
def test_variables_that_kubernetes_sets_for_a_service_are_ignored(service: str) -> None:
    ports = {"PORT": "tcp://10.0.0.1:11300", "SERVICE_HOST": "10.0.0.1", "SERVICE_PORT": "11300",
             "SERVICE_PORT_BEANSTALK": "11300", "PORT_11300_TCP": "tcp://10.0.0.1:11300",
             "PORT_11300_TCP_PROTO": "tcp", "PORT_11300_TCP_PORT": "11300",
             "PORT_11300_TCP_ADDR": "10.0.0.1"}  # fmt: skip
    assert options(**{f"{service}_{name}": value for name, value in ports.items()}) == options()


def test_other_variables_of_the_project_are_ignored() -> None:
    environ = {
        "GREENSTALK_PURE": "1",
        "GREENSTALK_COMPILE": "1",
        "GREENSTALK_PORTABLE": "1",
        "GREENSTALK_EMPTY": "",
        "GREENSTALKCTL_API": "x",
    }
    assert options(**environ) == options()


def test_variable_that_the_file_names_is_known(tmp_path: Path) -> None:
    file = tmp_path / "greenstalk.toml"
    file.write_text('[servers.b]\nurl = "https://b.example/"\ntoken_env = "GREENSTALK_TOKEN_OF_B"\n')
    assert options("--config", str(file), GREENSTALK_TOKEN_OF_B="x").servers  # noqa: S106


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
        (["journal", "export", "d", "-q"], JournalExport("d", None, is_quiet=True)),
        (["journal", "export", "d", "--keep", "14", "-q", "-o", "f"], JournalExport("d", "f", is_quiet=True, keep=14)),
        (["journal", "import", "d"], JournalImport("d", None)),
        (["journal", "import", "d", "f"], JournalImport("d", "f")),
        (["config"], ShowConfig(options(), is_json=False)),
        (["config", "--json", "-p1"], ShowConfig(options("-p1"), is_json=True)),
        (["handover", "--journal", "postgresql://c/d"], Handover(options("--journal", "postgresql://c/d"))),
        (["handover", "-h"], Information(usage())),
        (["hash-password"], HashPassword()),
        (["hash-password", "--help"], Information(usage())),
        (["config", "-v"], ShowVersion()),
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
        ["export", "d", "--keep", "14"],
        ["export", "d", "-o", "f", "--keep", "0"],
        ["export", "d", "-q", "-q"],
        ["import", "d", "f", "g"],
        ["import", "d", "-f"],
        ["import", "d", ""],
        ["check", "d", "e"],
        ["dump", "d"],
        ["reshard", "d", "--shards", "2"],
        ["reshard", "postgresql://db/jobs", "--processes", "2"],
    ],
)
def test_unknown_verb_of_journal_is_refused(argv: list[str]) -> None:
    error = refusal("journal", *argv)
    assert str(error).endswith(
        ": must be `journal check DIR`, `journal export DIR [-o FILE] [--keep N] [-q]`, `journal import DIR [FILE]`"
        " or `journal reshard DIR --processes N [--pin PATTERN=SHARD]` (of a database URL: --shards N), with N from"
        " 1 to 1024"
    )
    assert error.exit_code == 5


def test_hash_password_takes_no_arguments() -> None:
    assert str(refusal("hash-password", "sesame")).startswith("hash-password: takes no arguments")


def test_handover_needs_a_journal() -> None:
    assert str(refusal("handover")) == "handover: set --journal to the database that the servers share"


def test_bad_option_of_config_is_refused() -> None:
    assert str(refusal("config", "--zzz")) == "unknown flag --zzz: greenstalk-server -h lists the flags"


# Units


def sources(row: Definition, text: str, path: Path) -> list[Callable[[], Options]]:
    """Return functions that set *row* to *text* by flag, by variable and in a file."""

    def read() -> Options:
        path.write_text(f"{row.key} = {text if text.isdigit() else json.dumps(text)}\n")
        return options("--config", str(path))

    return [lambda: options(row.flags[0], text), lambda: options(**{row.variable: text}), read]


@pytest.mark.parametrize("row", [row for row in DEFINITIONS if row.metavar == "BYTES"], ids=lambda row: row.field)
def test_size_may_have_a_unit(row: Definition, tmp_path: Path) -> None:
    for text in ("268435456", "262144k", "256MB", "256MiB"):
        assert [get().value_of(row.field) for get in sources(row, text, tmp_path / "file")] == [2**28] * 3
    for get in sources(row, "10x", tmp_path / "file"):
        with pytest.raises(UsageError, match=r" 10x: must be a whole number of bytes, .*64k.*10MB.*2GiB"):
            get()


@pytest.mark.parametrize("text", ["+268435456", "262144K", "262144KB", "262144KiB", "256m", "256M"])
def test_units_of_sizes(text: str) -> None:
    assert options("-z", text).max_job_size == 2**28
    assert options("-z", "1g") == options("-z", "1GB") == options("-z", "1GiB")


@pytest.mark.parametrize("text", ["1.5G", "10 M", "M", "1kk", "10b", "10ki", "1e3", "9" * 5000 + "k", "-1k"])
def test_size_with_a_wrong_unit_is_refused(text: str) -> None:
    assert ": must be a whole number of bytes, " in str(refusal("-z", text))


UNITS = {"sync_interval_ns": (10**6, 1), "lease_ns": (10**9, 1), "outage_wait_ns": (10**9, 1)}
"""By field: the value of the field for a plain `1`, and the nanoseconds per unit of the field."""


@pytest.mark.parametrize(
    "row", [row for row in DEFINITIONS if row.metavar in {"MS", "SECONDS"}], ids=lambda row: row.field
)
def test_time_may_have_units(row: Definition, tmp_path: Path) -> None:
    plain, unit = UNITS.get(row.field, (1, 10**9))
    for text, value in (("7", 7 * plain), ("90s", 90 * 10**9 // unit), ("59m60s", 3600 * 10**9 // unit)):
        assert [get().value_of(row.field) for get in sources(row, text, tmp_path / "file")] == [value] * 3
    assert "as in 50ms, 90s or 1h30m" in str(refusal(row.flags[0], "1.5s"))


@pytest.mark.parametrize(("text", "ms"), [("2m", 120_000), ("1h", 3_600_000), ("2000ms", 2000), ("1m1s1ms", 61_001)])
def test_units_of_times(text: str, ms: int) -> None:
    assert options("-f", text).sync_interval_ns == ms * 10**6


@pytest.mark.parametrize("text", ["1 s", "s", "30s1m", "1s1s", "1M", "1w", "-1s", "1us", ""])
def test_time_with_wrong_units_is_refused(text: str) -> None:
    assert "as in 50ms, 90s or 1h30m" in str(refusal("-f", text))


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
    fields = ("journal_file_size", "sync_interval_ns", "lease_ns", "limits.idle_timeout", "memory_limit")
    assert [again.value_of(field) for field in fields] == [original.value_of(field) for field in fields]


def test_pins_of_all_flags_are_used() -> None:
    found = options("--processes", "3", "--pin", "mail.*,failed=1", "--pin=news=2")
    assert [str(pin) for pin in found.pins] == ["mail.*,failed=1", "news=2"]
    assert options("--processes", "3", GREENSTALK_PINS="mail.*,failed=1,news=2").pins == found.pins
    assert json.loads(as_json(found))["settings"]["pins"]["value"] == ["mail.*,failed=1", "news=2"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--pin", "a=1"], "--pin a=1: there is no shard 1: the shards are 0 to 0"),
        (["--processes", "2", "--pin", "a,b=1", "--pin", "b=0"], "--pin b=0: the pattern b is there twice"),
        (["--pin", "a"], "--pin a: must be a comma-separated list of patterns"),
    ],
)
def test_bad_pin_is_refused(argv: list[str], message: str) -> None:
    assert str(refusal(*argv)).startswith(message)


def test_policy_of_the_file_across_shards_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "greenstalk.toml"
    file.write_text('processes = 2\n[policies.mail]\ntubes = ["mail"]\ncopy_to = ["mail.failed"]\n')
    error = str(refusal("--config", str(file)))
    assert "policies: policy mail: copy_to mail.failed: mail.failed is on shard" in error
    assert "start with --pin mail,mail.failed=" in error
    assert options("--config", str(file), "--pin", "mail,mail.failed=1").policies
    assert options("--config", str(file), "--processes", "1").policies
