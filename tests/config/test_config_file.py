"""The configuration file: its keys, precedence, and error messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from greenstalk_server.config.command_line import parse
from greenstalk_server.config.definitions import DEFINITIONS
from greenstalk_server.config.options import Options, UsageError
from greenstalk_server.config.tables.peers import parse_peer
from greenstalk_server.config.tables.receivers import parse_receiver
from greenstalk_server.config.tables.roles import Rights, Role, User
from greenstalk_server.config.tables.thresholds import ThresholdSet
from greenstalk_server.core.policies.policy import Policy
from greenstalk_server.protocol.access import Rule

TABLES = """\
[[access]]
client = "mail-*"
consume = ["mail"]
[[access]]
listener = "127.0.0.1"
inspect = ["*"]
[policies.mail]
tubes = ["mail.*"]
max_attempts = 5
[policies."1st"]
tubes = ["a"]
priority = -1
[roles.billing]
view = ["billing.*", "mail"]
operate = ["billing.*"]
groups = ["billing-team"]
[roles.viewer]
view = ["mail"]
[roles.operator]
operate = ["a*"]
[roles.admin]
groups = ["queue-admins"]
[users.bea]
password_hash = "scrypt:32768:8:1$NZxjDsV2Nb5dCVGC$0123456789abcdef0123456789abcdef"
role = "billing"
[attention]
oldest_ready = "1h"
[attention.tubes."quiet.*"]
no_consumers = 0
[alerts.ops]
template = "json"
url = "https://hooks.example.com/"
[servers.two]
url = "https://two.example"
"""

BILLING = Rights(view=frozenset({"billing.*", "mail"}), operate=frozenset({"billing.*"}))

FIELDS: dict[str, object] = {
    "access": (
        Rule(listener=None, client="mail-*", produce=(), consume=("mail",), inspect=()),
        Rule(listener="127.0.0.1", client=None, produce=(), consume=(), inspect=("*",)),
    ),
    "policies": (Policy("mail", ("mail.*",), 0, {"max_attempts": 5}), Policy("1st", ("a",), -1, {})),
    "roles": {
        "viewer": Role("viewer", Rights(view=frozenset({"mail"}))),
        "operator": Role("operator", Rights(operate=frozenset({"a*"}))),
        "admin": Role("admin", Rights(is_admin=True), ("queue-admins",)),
        "billing": Role("billing", BILLING, ("billing-team",)),
    },
    "users": (User("bea", "scrypt:32768:8:1$NZxjDsV2Nb5dCVGC$0123456789abcdef0123456789abcdef", "billing"),),
    "attention": ThresholdSet({"oldest_ready": "1h", "tubes": {"quiet.*": {"no_consumers": 0}}}),
    "alerts": (parse_receiver("ops", {"template": "json", "url": "https://hooks.example.com/"}),),
    "servers": (parse_peer("two", {"url": "https://two.example"}),),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "greenstalk.toml"
    path.touch(mode=0o600)
    return path


def options(path: Path, *flags: str, **environ: str) -> Options:
    parsed = parse([*flags, "--config", str(path)], environ)
    assert isinstance(parsed, Options)
    return parsed


def refusal(path: Path, text: str | bytes) -> UsageError:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError) as caught:
        options(path)
    return caught.value


def test_every_table_sets_its_field(path: Path) -> None:
    """test_command_line.py tests the keys that have a flag or a variable."""
    path.write_text(TABLES)
    parsed = options(path)
    assert {field: parsed.value_of(field) for field in FIELDS} == FIELDS
    assert parsed.origins.keys() == FIELDS.keys() | {"config_file"}
    assert parsed.origins["users"] == f"{path}:{TABLES.splitlines().index('[users.bea]') + 1}"
    assert FIELDS.keys() == {row.field for row in DEFINITIONS if row.key and not row.flags and not row.variable}


def test_journal_may_be_a_database(path: Path) -> None:
    path.write_text('journal = "postgresql://c/d"\n')
    assert options(path).journal == "postgresql://c/d"
    assert str(refusal(path, 'data_dir = "."\njournal = "postgresql://c/d"')).startswith(f"{path}:2: journal: must not")


def test_keys_may_be_dotted_or_in_tables(path: Path) -> None:
    path.write_text('"sync_ms" = "never"\r\nweb . host = "::1"\n\nweb."port" = 0 # any\n')
    parsed = options(path)
    assert (parsed.web_host, parsed.sync_interval_ns, parsed.web_port) == ("::1", None, 0)
    lines = {field: f"{path}:{line}" for field, line in (("sync_interval_ns", 1), ("web_host", 2), ("web_port", 4))}
    assert parsed.origins == {"config_file": "--config", **lines}
    path.write_text('[ "web" ] # comment\nport = 0\n')
    assert options(path).origins["web_port"] == f"{path}:2"
    path.write_text("web = { port = 0 }\n")
    assert options(path).origins["web_port"] == f"{path}:1"


def test_flag_overrides_the_environment_which_overrides_the_file(path: Path) -> None:
    path.write_text("port = 1\nmax_job_size = 1\nsync_ms = 1\n[web]\nport = 1\n")
    parsed = options(path, "-p", "3", "-F", GREENSTALK_LISTEN_PORT="2", GREENSTALK_MAX_JOB_SIZE="2")
    assert (parsed.port, parsed.max_job_size, parsed.web_port, parsed.sync_interval_ns) == (3, 2, 1, None)
    assert parsed.origins == {
        "port": "-p",
        "max_job_size": "GREENSTALK_MAX_JOB_SIZE",
        "web_port": f"{path}:5",
        "sync_interval_ns": "-F",
        "config_file": "--config",
    }


def test_variable_names_the_configuration_file(path: Path) -> None:
    path.write_text("port = 1\n")
    parsed = parse([], {"GREENSTALK_CONFIG": str(path)})
    assert isinstance(parsed, Options)
    assert (parsed.port, parsed.origins["config_file"]) == (1, "GREENSTALK_CONFIG")


def test_empty_file_sets_nothing(path: Path) -> None:
    assert options(path).origins == {"config_file": "--config"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", ":1: unknown key prot: did you mean port?"),
        ("\n\n[web]\n\nhots = '::1'", ":5: unknown key web.hots: did you mean web.host?"),
        ("url_prefix = '/q'", ":1: unknown key url_prefix: did you mean web.url_prefix?"),
        ("[web]\nlisten = '::1'", ":2: unknown key web.listen: did you mean listen?"),
        ("port = 1\n[wbe]\nport = 1", ":2: unknown key wbe: did you mean web?"),
        ("[[web]]\nport = 1", ":1: web: must be a table: write [web], and its keys below it"),
        ("web = 1", ":1: web: must be a table: write [web], and its keys below it"),
        ("[port]\nnumber = 1", ":1: port \"{'number': 1}\": must be a port number from 0 (any free port) to 65535"),
        ('"a\\nb" = 1', ":1: unknown key 'a\\nb': did you mean "),
        ("port = '11300'", ":1: port 11300: must be a port number from 0 (any free port) to 65535, without quotes"),
        ("port = 65536", ":1: port 65536: must be a port number from 0 (any free port) to 65535, without quotes"),
        ("port = true", ":1: port True: must be a port number"),
        ("max_job_size = -1", ":1: max_job_size -1: must be a whole number of bytes, 0 or more, without quotes"),
        ("max_job_size = 1e3", ":1: max_job_size 1000.0: must be a whole number of bytes, 0 or more, without quotes"),
        ("sync_ms = 'often'", ":1: sync_ms often: must be a whole number of milliseconds, 0 (at every write) or more"),
        ("strict_recovery = 1", ":1: strict_recovery 1: must be true or false, without quotes"),
        ("strict_recovery = 'yes'", ":1: strict_recovery yes: must be true or false, without quotes"),
        ("listen = 1", ":1: listen 1: must be an address in quotes, or an array of them"),
        ("access = 1", ":1: access: must be tables, each headed [[access]]"),
        ("[access]", ":1: access: must be tables, each headed [[access]]"),
        ("[[access]]\nadminister = 1", ":1: access: rule 1: administer: must be true or false"),
        ("[[access]]\nconsum = []", ":1: access: rule 1: unknown key 'consum': did you mean consume?"),
        ("[[access]]\n[[access]]\nclient = 1", ":1: access: rule 2: client: must be a non-empty string"),
        ("[[access]]\nproduce = 'a'", ":1: access: rule 1: produce: must be an array of tube names, in which *"),
        ("[[access]]\nproduce = ['a b']", ":1: access: rule 1: produce: 'a b' cannot match any tube; * stands for"),
        ("attention = 1", ":1: attention: must be a table: write [attention], and its keys below it"),
        ("[attention]\npause = 1", ":2: attention: unknown key 'pause': did you mean paused?"),
        ("[attention]\npaused = -1", ":2: attention.paused -1: must be a number of seconds, 0 (off) or up to 31536000"),
        ("[attention]\ntimeouts = '1h'", ":2: attention.timeouts '1h': must be a whole number, 0 (off) or more"),
        ("[attention]\ntimeouts = true", ":2: attention.timeouts True: must be a whole number, 0 (off) or more"),
        ("[attention]\ndisk_free = '1X'", ":2: attention.disk_free '1X': must be a whole number of bytes, 0 (off)"),
        ("[attention]\nlimit_used = 90", ":2: attention.limit_used 90: must be a number from 0 to 1"),
        ("[attention]\ntubes = 1", ':2: attention.tubes: must be tables, each headed [attention.tubes."PATTERN"]'),
        ("[attention.tubes]\nmail = 1", ':2: attention.tubes."mail": must be a table of thresholds'),
        ("[attention.tubes.'a b']\npaused = 1", ":1: attention.tubes: 'a b' cannot match any tube; * matches any"),
        (
            "[attention.tubes.'mail.*']\npaused = 1\ndisk_free = 1",
            ":3: attention.tubes.\"mail.*\": unknown key 'disk_free': is a threshold of the server: write it below",
        ),
        ("roles = 1", ":1: roles: must be tables, each headed [roles.NAME]"),
        ("[roles]\na = 1", ":2: roles.a: must be a table, headed [roles.a]"),
        ("[roles.a]", ":1: roles.a: must have view, operate or admin, otherwise the role allows nothing"),
        ("[roles.a]\nviev = ['a']\nview = ['a']", ":2: roles.a: unknown key 'viev': did you mean view?"),
        ("[roles.a]\nview = 'a'", ":2: roles.a.view 'a': must be an array of tube names"),
        ("[roles.a]\nview = ['a b']", ":2: roles.a.view: 'a b' cannot match any tube"),
        ("[roles.a]\nadmin = 1", ":2: roles.a.admin 1: must be true or false"),
        ("[roles.a]\nadmin = true\ngroups = [1]", ":3: roles.a.groups list: must be an array of names of groups"),
        ("[roles.admin]\nview = ['a']", ":2: roles.admin: view must not be set: the role admin always exists"),
        ("[roles.viewer]\noperate = ['a']", ":2: roles.viewer: operate must not be set"),
        ("[roles.'a b']\nview = ['a']", ":1: roles: 'a b': must be a name of 1 to 100 letters, digits and -_."),
        ("users = 1", ":1: users: must be tables, each headed [users.NAME]"),
        ("[users.a]\nrole = 'viewer'", ":1: users.a.password_hash: must be the output of `greenstalk-server hash-pass"),
        ("[users.'a:b']\nrole = 'viewer'", ":1: users: 'a:b': must be a name of 1 to 100 visible characters"),
        (
            "[users.a]\nrole = 'x'\npassword_hash = 'scrypt:1:1:1$a$0123456789abcdef0123456789abcdef'",
            ":1: users.a.role x: must be one of viewer, operator, admin",
        ),
        ("policies = 1", ":1: policies: must be tables, each headed [policies.NAME]"),
        ("port = 1\n[[policies]]", ":2: policies: must be tables, each headed [policies.NAME]"),
        ("[policies]\nmail = 1", ":2: policy mail: must be a table of keys, not 1"),
        ("port = 1\n[policies.mail]\nmax_jobs = 1", ":2: policy mail: tubes is missing: it must be an array of 1 to"),
        (
            "[policies.mail]\ntubes = ['a']\n\nmax_job = 1",
            ":4: policy mail: unknown key max_job: did you mean max_jobs?",
        ),
        (
            "[policies.'a.b']\ntubes = ['a']\nrate = nan",
            ":3: policy a.b: rate nan: must be a number of starts per second",
        ),
        ("[policies.a.b]\ntubes = ['a']", ":1: policy a: unknown key b: did you mean"),
        ("policies.a = { tubes = ['a'], max_jobs = -1 }", ":1: policy a: max_jobs -1: must be a whole number, 0 (no"),
        (
            "[policies.'a b']\ntubes = ['a']",
            ":1: policy 'a b': the name of a policy must have 1 to 100 letters, digits",
        ),
        (
            "[policies.a]\ntubes = ['a']\nexpire_after = 2026-01-31",
            ":3: policy a: expire_after a value of the type date: must be a number of seconds, 0 (off) or from 0.001",
        ),
        ("[limits]\njobs = -1", ":2: limits.jobs -1: must be a whole number, 0 (no limit) or more, without quotes"),
        ('user = "a\\u0000b"', ":1: user 'a\\x00b': must be text without NUL characters, in quotes"),
        ("data_dir = ''", ":1: data_dir '': must be the path of a directory, in quotes"),
        ("log_level = 'INFO'", ":1: log_level INFO: must be debug, info, warning or error, in quotes"),
        ("web.trusted_proxies = '::1'", ":1: web.trusted_proxies ::1: must be an array of addresses and networks"),
        ("web.trusted_proxies = [1]", ":1: web.trusted_proxies [1]: must be an array of addresses and networks"),
        ("web.trusted_proxies = ['']", ":1: web.trusted_proxies ['']: must be an array of addresses and networks"),
        ("web.password = ''", ":1: web.password: must be at least one character, in quotes"),
        ("web.password = 123", ":1: web.password: must be at least one character, in quotes"),
        ("port = 1\nport = 2", ": Cannot overwrite a value (at line 2, column 9)"),
        ("port 1", ": Expected '=' after a key in a key/value pair (at line 1, column 6)"),
        ("port = " + 5000 * "9", ": Exceeds the limit"),
        (b"# fine\nlisten = '\xff'", ":2: must be UTF-8, as all TOML is"),
        ("port = " + 5000 * "[", ": is nested too deeply"),
    ],
)
def test_error_has_its_line_and_the_allowed_values(path: Path, text: str | bytes, message: str) -> None:
    error = refusal(path, text)
    assert str(error).startswith(f"{path}{message}")
    assert error.exit_code == (111 if "port number" in message else 10 if "directory" in message else 5)


def test_wrong_key_is_refused_even_if_a_flag_overrides_it(path: Path) -> None:
    path.write_text("port = 'x'\n")
    with pytest.raises(UsageError):
        options(path, "-p", "1")


def test_contradictory_keys_are_named_with_their_lines(path: Path) -> None:
    error = refusal(path, "[web]\nhost = '0.0.0.0'\n")
    assert str(error).startswith(f"{path}:2: web.host 0.0.0.0: must be a loopback address")
    error = refusal(path, "[web]\npassword = 'a'\npassword_file = 'f'\n")
    assert str(error) == f"{path}:3: web.password_file: must not be set together with {path}:2: web.password"


def test_loop_of_dead_letters_is_a_warning(path: Path) -> None:
    path.write_text("[policies.a]\ntubes = ['a']\ndead_letter = 'b'\n[policies.b]\ntubes = ['b']\ndead_letter = 'a'\n")
    (warning,) = options(path).warnings
    assert warning.startswith(f"{path}:1: policies: the dead letters of a go to b go to a: ")


def test_file_may_not_have_more_than_ten_thousand_policies(path: Path) -> None:
    text = "".join([f"[policies.p{number}]\ntubes = ['a']\n" for number in range(10_001)])
    assert str(refusal(path, text)) == f"{path}:1: policies: must be at most 10000 tables, not 10001"


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        options(tmp_path)
    assert str(caught.value) == f"--config {tmp_path}: Is a directory; it must be a file of options, in TOML"
    with pytest.raises(UsageError) as caught:
        parse([], {"GREENSTALK_CONFIG": "/no/such/file"})
    assert str(caught.value) == (
        "GREENSTALK_CONFIG /no/such/file: No such file or directory; it must be a file of options, in TOML"
    )
    with pytest.raises(UsageError) as caught:
        parse(["--config", "a\0b"], {})
    assert str(caught.value) == "--config 'a\\x00b': must be text without NUL characters"


def test_endless_file_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        options(Path("/dev/zero"))
    assert str(caught.value) == "--config /dev/zero: must be a file of at most 1048576 bytes"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[web]\npassword = 'pa55word'\n", "2: {} web.password"),
        ("journal = 'postgresql://a:pa55word@b/c'", "1: {} journal"),
    ],
)
@pytest.mark.parametrize(("mode", "is_public"), [(0o600, False), (0o640, False), (0o644, True)])
def test_world_readable_secret_logs_a_warning(path: Path, mode: int, is_public: bool, text: str, where: str) -> None:
    path.write_text(text)
    path.chmod(mode)
    warning = where.format("every user of this machine can read")
    message = f"{path}:{warning}; run: chmod o-r {path}"
    assert options(path).warnings == ((message,) if is_public else ())


def test_file_without_secrets_may_be_world_readable(path: Path) -> None:
    path.write_text("port = 1\njournal = 'postgresql://a@b/c'\n")
    path.chmod(0o644)
    assert options(path).warnings == ()
