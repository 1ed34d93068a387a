"""The tables `[alerts.NAME]` and `[servers.NAME]`: values, defaults, errors, and that no secret is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from greenstalk_server.config.command_line import parse
from greenstalk_server.config.options import Options, UsageError, secret_variables
from greenstalk_server.config.show import as_json, as_table
from greenstalk_server.config.tables.receivers import CONDITION_KINDS, PAGERDUTY_URL, SEVERITIES, Receiver
from greenstalk_server.config.tables.targets import ENVIRONMENT, FILE, Secret
from greenstalk_server.core.jobs.job import SECOND
from greenstalk_server.web.features.conditions import measures


def read(tmp_path: Path, text: str) -> Options:
    file = tmp_path / "greenstalk.toml"
    file.write_text(text)
    file.chmod(0o600)
    command = parse(["--config", str(file)], {})
    assert isinstance(command, Options)
    return command


def receiver(tmp_path: Path, text: str) -> Receiver:
    (found,) = read(tmp_path, f"[alerts.ops]\n{text}").alerts
    return found


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    return str(caught.value).replace(f"{tmp_path}/greenstalk.toml", "FILE")


def test_kinds_and_severities_match_the_conditions() -> None:
    assert tuple(kind.name for kind in measures.KINDS) == CONDITION_KINDS
    assert SEVERITIES == measures.SEVERITIES


def test_defaults_of_a_receiver(tmp_path: Path) -> None:
    found = receiver(tmp_path, 'template = "json"\nurl = "https://a.example/hook"')
    assert (found.name, found.template, found.target.url) == ("ops", "json", "https://a.example/hook")
    assert (found.severities, found.kinds, found.tubes) == (frozenset(SEVERITIES), frozenset(CONDITION_KINDS), ())
    times = (found.wait, found.resolve_after, found.repeat, found.interval, found.target.timeout)
    assert times == (60 * SECOND, 60 * SECOND, 4 * 3600 * SECOND, 30 * SECOND, 10 * SECOND)
    assert (found.with_server, found.with_resolved, found.secret) == (True, True, None)
    assert (found.target.allows_plain, found.target.allows_private, found.target.networks) == (False, False, ())


def test_all_values_of_a_receiver(tmp_path: Path) -> None:
    found = receiver(
        tmp_path,
        """
template = "json"
url_file = "/etc/ops.url"
secret_env = "OPS_SECRET"
token_file = "/etc/ops.token"
timeout = "5s"
ca_file = "/etc/ca.pem"
allow_plain = true
allow_private = ["10.0.0.0/8", "::1"]
severities = ["critical"]
kinds = ["limit", "no_consumers"]
tubes = ["mail.*", "web"]
for = 0
resolve_after = "2m"
repeat = 0
interval = "1h30m"
resolved = false
source = "queue-eu"
dashboard_url = "https://queue.example.com/queue/"
headers = { "X-Team" = "mail" }
""",
    )
    assert found.target.secret_url == Secret(FILE, "/etc/ops.url")
    assert (found.secret, found.target.token) == (Secret(ENVIRONMENT, "OPS_SECRET"), Secret(FILE, "/etc/ops.token"))
    assert [str(network) for network in found.target.networks] == ["10.0.0.0/8", "::1/128"]
    assert (found.wait, found.resolve_after, found.repeat, found.interval) == (0, 120 * SECOND, 0, 5400 * SECOND)
    assert (found.with_server, found.with_resolved) == (False, False)
    assert found.source == "queue-eu"
    assert (found.dashboard_url, found.headers) == ("https://queue.example.com/queue", {"X-Team": "mail"})


def test_receiver_wants_only_its_conditions(tmp_path: Path) -> None:
    found = receiver(
        tmp_path,
        'template = "slack"\nurl = "https://a.example/"\nseverities = ["critical"]\ntubes = ["mail.*"]\nserver = true',
    )
    assert found.wants("limit", "critical", b"mail.welcome")
    assert found.wants("disk", "critical", b"")
    assert not found.wants("limit", "warning", b"mail.welcome")
    assert not found.wants("limit", "critical", b"web")


def test_pagerduty_has_a_default_address(tmp_path: Path) -> None:
    found = receiver(tmp_path, 'template = "pagerduty"\nsecret_env = "KEY"')
    assert found.target.url == PAGERDUTY_URL


ERRORS = [
    ("[alerts]\nops = 1", "FILE:2: alerts.ops: must be a table, headed [alerts.ops]"),
    ("alerts = 1", "FILE:1: alerts: must be tables, each headed [alerts.NAME]"),
    ('[alerts.ops]\nurl = "https://a.example"', "FILE:1: alerts.ops.template: must be json, slack or pagerduty"),
    ('[alerts.ops]\ntemplate = "json"', "FILE:1: alerts.ops: must have exactly one of url, url_file and url_env"),
    (
        '[alerts.ops]\ntemplate = "json"\nurl = "https://a.example"\nurl_env = "URL"',
        "FILE:4: alerts.ops: must have exactly one of url, url_file and url_env",
    ),
    (
        '[alerts.ops]\ntemplate = "json"\nurl = "http://a.example"',
        "FILE:3: alerts.ops: must begin with https://, or the table must have allow_plain = true",
    ),
    (
        '[alerts.ops]\ntemplate = "pagerduty"',
        "FILE:2: alerts.ops: must have secret_file or secret_env, the routing key",
    ),
    (
        '[alerts.ops]\ntemplate = "slack"\nurl = "https://a.example"\nsecret_env = "A"',
        "FILE:2: alerts.ops: must not have a secret: messages in this form are not signed",
    ),
    (
        '[alerts.ops]\ntemplate = "json"\nurl = "https://a.example"\nkind = ["disk"]',
        "FILE:4: alerts.ops: unknown key 'kind': did you mean kinds?",
    ),
    (
        '[alerts.ops]\ntemplate = "mail"\nurl = "https://a.example"',
        "FILE:2: alerts.ops.template 'mail': must be json, slack or pagerduty, in quotes",
    ),
    (
        '[alerts.ops]\ntemplate = "json"\nurl = "https://a.example"\ntubes = ["a b"]',
        "FILE:4: alerts.ops.tubes list: must be an array of 1 to 100 patterns of tube names, in quotes",
    ),
    (
        '[alerts.ops]\ntemplate = "json"\nurl = "https://a.example"\ntimeout = "2m"',
        "FILE:4: alerts.ops.timeout '2m': must be a number of seconds from 1 to 60",
    ),
    ('[alerts."a b"]\ntemplate = "json"', "FILE:1: alerts: 'a b': must be a name of 1 to 40 letters"),
    ('[servers.two]\ntoken_env = "A"', "FILE:1: servers.two: must have exactly one of url, url_file and url_env"),
    (
        '[servers.two]\nurl = "https://b.example"\ntemplate = "json"',
        "FILE:3: servers.two: unknown key 'template': did you mean",
    ),
]


@pytest.mark.parametrize(("text", "message"), ERRORS)
def test_error_has_its_line_and_the_allowed_values(tmp_path: Path, text: str, message: str) -> None:
    assert refusal(tmp_path, text).startswith(message)


@pytest.mark.parametrize(
    "url",
    [
        "a.example", "ftp://a.example/swordfish", "https://", "https:///swordfish", "https://u:swordfish@a.example/",
        "https://a.example/#swordfish", "https://a.example/sword fish", "https://a.example:99999/swordfish",
        "https://a.example/\\u00e4swordfish", "https://a.example/" + "x" * 2000, "https://a.example\\\\@b.example/",
    ],
)  # fmt: skip
def test_address_that_is_not_allowed_is_not_shown(tmp_path: Path, url: str) -> None:
    message = refusal(tmp_path, f'[alerts.ops]\ntemplate = "json"\nurl = "{url}"')
    assert message == (
        "FILE:3: alerts.ops.url: must be a URL that begins with https:// or http://, without a password, at most 2000"
        " characters"
    )


@pytest.mark.parametrize(
    "headers", ['{ "Host" = "a" }', '{ "X-A" = "swordfish\\n" }', '{ "X A" = "swordfish" }', '{ "X-A" = 1 }']
)
def test_headers_that_are_not_allowed(tmp_path: Path, headers: str) -> None:
    message = refusal(tmp_path, f'[alerts.ops]\ntemplate = "json"\nurl = "https://a.example"\nheaders = {headers}')
    assert message.startswith("FILE:4: alerts.ops.headers: must be a table of at most 20 headers")
    assert "swordfish" not in message


def test_at_most_16_receivers(tmp_path: Path) -> None:
    tables = "".join([f'[alerts.n{n}]\ntemplate = "json"\nurl = "https://a.example"\n' for n in range(17)])
    assert refusal(tmp_path, tables).endswith("alerts: must be at most 16 tables, not 17")


def test_shown_configuration_has_no_secret(tmp_path: Path) -> None:
    options = read(
        tmp_path,
        """
[alerts.ops]
template = "slack"
url = "https://hooks.example.com/services/swordfish"
headers = { "X-Key" = "swordfish" }

[servers.two]
url = "https://two.example"
token_file = "/etc/two.token"
""",
    )
    shown: dict[str, Any] = json.loads(as_json(options))["settings"]
    assert shown["alerts"]["value"] == {
        "ops": {"template": "slack", "url": "https://hooks.example.com/...", "headers": {"X-Key": "..."}}
    }
    assert shown["servers"]["value"] == {"two": {"url": "https://two.example", "token_file": "/etc/two.token"}}
    assert "swordfish" not in as_json(options) + as_table(options) + repr(options.alerts[0].name)


def test_chat_address_in_a_readable_file_is_a_warning(tmp_path: Path) -> None:
    text = '[alerts.ops]\ntemplate = "slack"\nurl = "https://hooks.example.com/services/swordfish"\n'
    assert read(tmp_path, text).warnings == ()
    (tmp_path / "greenstalk.toml").chmod(0o644)
    command = parse(["--config", str(tmp_path / "greenstalk.toml")], {})
    assert isinstance(command, Options)
    (warning,) = command.warnings
    assert "every user of this machine can read alerts; run: chmod o-r " in warning


def test_alerts_without_a_dashboard_are_a_warning(tmp_path: Path) -> None:
    text = '[web]\nenabled = false\n[alerts.ops]\ntemplate = "json"\nurl = "https://hooks.example.com/"\n'
    (warning,) = read(tmp_path, text).warnings
    assert "alerts has no effect: the dashboard, which sends alerts and shows servers, is off (" in warning


def test_variables_with_secrets_are_listed(tmp_path: Path) -> None:
    options = read(
        tmp_path,
        """
[alerts.ops]
template = "json"
url_env = "URL"
secret_env = "KEY"
token_file = "/etc/token"
[servers.two]
url = "https://two.example"
token_env = "TOKEN"
""",
    )
    assert sorted(secret_variables(options.alerts, options.servers)) == ["KEY", "TOKEN", "URL"]
