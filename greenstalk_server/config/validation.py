"""Checks of several options together: contradictions raise UsageError, doubtful combinations are warnings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from greenstalk_server.config.definitions import LARGEST_JOB_SIZE
from greenstalk_server.config.options import Options, UsageError
from greenstalk_server.config.tables.addresses import is_loopback
from greenstalk_server.config.text import quote_value, without_password
from greenstalk_server.core.policies.policy import PolicySet
from greenstalk_server.core.policies.policy_shards import find_split
from greenstalk_server.core.tube_shards import TubeShards, find_pin_problem

DATABASE_URL: Final = "DATABASE_URL"
"""The environment variable of --journal. Other programs use this variable too."""

MAX_PORT: Final = 65535

TOKENS: Final = ("api_token", "api_operator_token", "api_viewer_token", "metrics_token")

SHARED_PASSWORDS: Final = ("operator_password", "viewer_password")
"""The passwords of the roles other than admin."""


_EXCLUSIVE: Final = (
    ("journal", "data_dir", ": a server has one journal"),
    ("extended_stats", "strict_protocol", ": beanstalkd has no such keys"),
    ("web_password_file", "web_password", ""),
    ("oidc_client_secret_file", "oidc_client_secret", ""),
)
"""Pairs of options that must not both be set, and the reason."""

_NEEDED: Final = {
    "link": ("journal",),
    "link_listen": ("link",),
    "link_cert": ("link_ca",),
    "link_key": ("link_cert",),
    "link_ca": ("link_cert",),
    "tls_key": ("tls_cert",),
    "tls_client_ca": ("tls_cert",),
    "web_user": ("web_password", "web_password_file"),
    "oidc_issuer": ("oidc_client_id",),
    "oidc_client_id": ("oidc_issuer",),
    "oidc_client_secret": ("oidc_issuer",),
    "oidc_client_secret_file": ("oidc_issuer",),
}
"""Options, each with the options of which at least one must be set too."""


def problems(options: Options) -> Iterator[UsageError]:
    """Yield the contradictions among *options*: the first error of each check."""
    for field, other, reason in _EXCLUSIVE:
        if options.value_of(field) and options.value_of(other):
            name = options.label_of(other)
            yield UsageError(f"{options.label_of(field)}: must not be set together with {name}{reason}")
    for field, others in _NEEDED.items():
        if options.value_of(field) and not any(options.value_of(other) for other in others):
            yield UsageError(f"{options.label_of(field)}: must not be set without {options.label_of(others[0])}")
    yield from _split_policies(options)
    for check in (
        _refuse_unusable_pins,
        _refuse_unusable_processes,
        _refuse_unlinked_shards,
        _refuse_open_dashboard,
        _refuse_bad_passwords,
        _refuse_bad_tokens,
        _refuse_unknown_roles,
        _refuse_bad_scopes,
    ):
        try:
            check(options)
        except UsageError as error:
            yield error


def warnings(options: Options) -> Iterator[str]:
    """Yield a message for each doubtful option."""
    if options.max_job_size > LARGEST_JOB_SIZE:
        name = options.label_of("max_job_size")
        yield f"the maximum job size ({name}) was reduced to {LARGEST_JOB_SIZE}, the largest allowed"
    if options.journal is not None and "sync_interval_ns" in options.origins and options.sync_interval_ns != 0:
        name = options.label_of("sync_interval_ns")
        yield f"{name} is ignored: a journal in PostgreSQL is committed before anything is acknowledged"
    url, origin = options.journal or "", options.origins.get("journal", "")
    if origin.startswith("-") and without_password(url) != url:
        advice = f"set {DATABASE_URL}, or journal in the configuration file, instead"
        yield f"{origin}: every user of this machine can read the password in it; {advice}"
    for loop in PolicySet(options.policies).warnings():
        yield f"{options.label_of('policies')}: {loop}"
    for field in ("alerts", "servers"):
        if options.value_of(field) and not options.web_enabled:
            name, other = options.label_of(field), options.label_of("web_enabled")
            yield f"{name} has no effect: the dashboard, which sends alerts and shows servers, is off ({other})"
    if options.viewer_password and not options.operator_password and not options.has_admin:
        name, other = options.label_of("viewer_password"), options.label_of("web_password")
        yield f"{name} is set without {other}: nobody can change anything on the dashboard"
    if options.oidc_issuer is not None and not any(role.groups for role in options.roles.values()):
        name = options.label_of("oidc_issuer")
        yield f"{name}: no role has groups, so no user of the provider can sign in; set groups in [roles.NAME]"


def refuse_equal_passwords(options: Options, password: str | None) -> None:
    """Raise UsageError if the admin password, *password*, or the operator password also belongs to another role."""
    for field in SHARED_PASSWORDS:
        if password and password == options.value_of(field):
            raise UsageError(f"{options.label_of(field)}: must differ from the admin password")
    if options.viewer_password and options.viewer_password == options.operator_password:
        raise UsageError(f"{options.label_of('viewer_password')}: must differ from the operator password")


def _refuse_unusable_processes(options: Options) -> None:
    """Raise UsageError if several servers start for a queue whose number of shards nobody has set: one would lead."""
    if options.processes > 1 and options.journal is not None and "shards" not in options.origins:
        name, other = f"{options.label_of('processes')} {options.processes}", options.label_of("journal")
        raise UsageError(f"{name}: must not be set together with {other} without {options.label_of('shards')}")


def _refuse_unusable_pins(options: Options) -> None:
    """Raise UsageError if a pin names a shard that does not exist, or two pins have the same pattern."""
    if problem := find_pin_problem(options.pins, options.shard_count):
        raise UsageError(f"{options.label_of('pins')} {problem}")


def _split_policies(options: Options) -> Iterator[UsageError]:
    """Yield an error for each policy that copies or moves jobs between shards."""
    if not find_pin_problem(options.pins, options.shard_count):
        tube_shards = TubeShards(options.shard_count, options.pins)
        for policy in options.policies:
            if (split := find_split(policy, tube_shards)) is not None:
                yield UsageError(f"{options.label_of('policies')}: {split}")


def _refuse_unlinked_shards(options: Options) -> None:
    """Raise UsageError if the servers of a queue with shards could not reach each other."""
    link = options.link
    if link is None:
        if options.shards > 1 and options.processes == 1:
            name, other = f"{options.label_of('shards')} {options.shards}", options.label_of("link")
            raise UsageError(f"{name}: must not be set without {other}, the address for the other servers of the queue")
        if options.link_cert is not None:
            raise UsageError(f"{options.label_of('link_cert')}: must not be set without {options.label_of('link')}")
    elif options.link_cert is None and not is_loopback(link.rpartition(":")[0].strip("[]")):
        name = f"{options.label_of('link')} {quote_value(link)}"
        raise UsageError(f"{name}: must be a loopback address without {options.label_of('link_cert')}, as for TLS")


def _refuse_open_dashboard(options: Options) -> None:
    """Raise UsageError if anyone on the network could use the dashboard, unless the operator allows it."""
    if not options.web_enabled or options.needs_login or options.allow_insecure or is_loopback(options.web_host):
        return
    tokens = [options.label_of(token) for token in TOKENS if options.value_of(token)]
    note = f" ({tokens[0]} does not protect the pages)" if tokens else ""
    raise UsageError(
        f"{options.label_of('web_host')} {quote_value(options.web_host)}: must be a loopback address while the"
        f" dashboard has no password{note}; set GREENSTALK_WEB_PASSWORD, or GREENSTALK_ALLOW_INSECURE=1 to open it to"
        " everyone"
    )


def _refuse_bad_passwords(options: Options) -> None:
    if options.web_user and ":" in options.web_user:
        raise UsageError(f"{options.label_of('web_user')}: must not contain a colon, which no browser can send")
    refuse_equal_passwords(options, options.web_password)


def _refuse_bad_tokens(options: Options) -> None:
    """Raise UsageError if no HTTP header can carry a token, or if two tokens are equal."""
    names: dict[str, str] = {}
    for field in TOKENS:
        token, name = options.value_of(field), options.label_of(field)
        if token is None:
            continue
        if not re.fullmatch(r"[!-~]+", token):
            raise UsageError(f"{name}: must be visible ASCII characters: no HTTP header can carry others")
        if token in names:
            raise UsageError(f"{name}: must differ from {names[token]}, which grants different access")
        names[token] = name


def _refuse_unknown_roles(options: Options) -> None:
    """Raise UsageError if a user has a role that does not exist."""
    for user in options.users:
        if user.role not in options.roles:
            name, known = options.label_of("users"), ", ".join(options.roles)
            raise UsageError(f"{name}.{user.name}.role {quote_value(user.role)}: must be one of {known}")


def _refuse_bad_scopes(options: Options) -> None:
    if options.oidc_issuer is not None and "openid" not in options.oidc_scopes.split():
        raise UsageError(f"{options.label_of('oidc_scopes')}: must contain openid")
