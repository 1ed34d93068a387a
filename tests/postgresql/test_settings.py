"""Settings of databases, roles and addresses: some have no effect, others are refused."""

from __future__ import annotations

import threading

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from greenstalk_server.journal.postgresql.connection import (
    DatabaseConnection,
    DatabaseRefused,
    DatabaseUnavailable,
    Hosts,
    conninfo_of,
)
from greenstalk_server.journal.postgresql.lease import LeaderLease
from greenstalk_server.runtime.exit_codes import StartError
from tests.postgresql.test_journal import Member, bodies
from tests.support.cluster import Cluster
from tests.support.processes import join


def url_of(cluster: Cluster, role: str, database: str = "greenstalk") -> str:
    return f"postgresql://{role}@127.0.0.1:{cluster.port}/{database}"


def test_settings_of_role_and_database_have_no_effect(cluster: Cluster) -> None:
    """The settings are timeouts of statements and locks, serializable transactions, and other encodings."""
    for query in (
        "CREATE ROLE odd LOGIN",
        "ALTER ROLE odd SET statement_timeout = '50ms'",
        "ALTER ROLE odd SET lock_timeout = '50ms'",
        "ALTER ROLE odd SET default_transaction_isolation = 'serializable'",
        "ALTER ROLE odd SET client_encoding = 'latin1'",
        "CREATE DATABASE odd OWNER odd ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0",
    ):
        cluster.ask(query)
    one, two = (Member(url_of(cluster, "odd", "odd"), "日本 é", name) for name in ("ein", "zwei ü"))
    try:
        one.lead()
        id = one.put(b"a")
        with psycopg.connect(url_of(cluster, "postgres", "odd")) as other:
            other.execute("UPDATE greenstalk_journal SET lease_until = lease_until + interval '1s'")
            writer = threading.Thread(target=one.commit, daemon=True)
            writer.start()
            writer.join(0.2)
            other.commit()
        join(writer)
        two.read()
        assert bodies(two) == {id: b"a"}
        assert two.lease.read_state().leader == "ein"
        two.lease.report_standby(0.0)
        assert [standby.name for standby in one.lease.standbys()] == ["zwei ü"]
    finally:
        one.close()
        two.close()


def test_session_detects_a_lost_client_and_a_long_lock(cluster: Cluster) -> None:
    connection = DatabaseConnection(Hosts(conninfo_of(cluster.url, "--journal")), "greenstalk-server test", 2.0)
    wanted = {
        "application_name": "greenstalk-server test",
        "lock_timeout": "1s",
        "tcp_keepalives_idle": "5",
        "tcp_keepalives_interval": "2",
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": "11000",
        "client_connection_check_interval": "1s",
    }
    assert {name: connection.run(f"SHOW {name}")[0][0] for name in wanted} == wanted
    connection.close()


def test_session_with_refused_settings_is_not_used(cluster: Cluster) -> None:
    for query in (
        "CREATE ROLE shadowed LOGIN",
        "CREATE SCHEMA shadow",
        "GRANT USAGE ON SCHEMA shadow TO shadowed",
        """CREATE FUNCTION shadow.set_config(text, text, boolean) RETURNS text LANGUAGE plpgsql
           AS $$ BEGIN RAISE 'not today'; END $$""",
        "ALTER ROLE shadowed SET search_path = shadow, pg_catalog",
    ):
        cluster.ask(query)
    connection = DatabaseConnection(Hosts(conninfo_of(url_of(cluster, "shadowed"), "--journal")), "test", 1.0)
    for _ in range(2):
        with pytest.raises(DatabaseUnavailable, match=r"^PostgreSQL: not today$"):
            connection.run("SELECT 1")
    connection.close()


@pytest.mark.parametrize(
    ("database", "rights", "message"),
    [
        ("greenstalk", "SELECT", "permission denied for table greenstalk_journal"),
        ("greenstalk", "SELECT, INSERT, UPDATE", "permission denied to DELETE in greenstalk_"),
        ("postgres", "SELECT", "permission denied for schema public"),
    ],
)
def test_role_without_all_rights_never_leads(cluster: Cluster, database: str, rights: str, message: str) -> None:
    Member(cluster.url, "rights", "one").close()
    cluster.ask("DROP ROLE IF EXISTS restricted")
    cluster.ask("CREATE ROLE restricted LOGIN")
    cluster.ask(f"GRANT {rights} ON ALL TABLES IN SCHEMA public TO restricted")
    lease = LeaderLease(conninfo_of(url_of(cluster, "restricted", database), "--journal"), "rights", "one", 2.0)
    try:
        with pytest.raises(
            DatabaseRefused, match=f"^PostgreSQL: {message}.*; the role needs the right to create tables, or all"
        ):
            lease.open()
    finally:
        lease.close()
        cluster.ask("DROP OWNED BY restricted")
        cluster.ask("DROP ROLE restricted")


def test_failed_migration_changes_nothing(cluster: Cluster) -> None:
    cluster.ask("CREATE DATABASE halfway")
    url = url_of(cluster, "postgres", "halfway")
    lease = LeaderLease(conninfo_of(url, "--journal"), "default", "one", 2.0)
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(
            """CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS
               $$ BEGIN IF to_regclass('greenstalk_standby') IS NOT NULL THEN RAISE 'not today'; END IF; END $$"""
        )
        admin.execute("CREATE EVENT TRIGGER refuse ON ddl_command_end EXECUTE FUNCTION refuse()")
        try:
            with pytest.raises(DatabaseRefused, match=r"^PostgreSQL: not today$"):
                lease.open()
            assert admin.execute("SELECT relname FROM pg_class WHERE relname ~ '^greenstalk'").fetchall() == []
            admin.execute("DROP EVENT TRIGGER refuse")
            lease.open()
            assert lease.read_state().is_free
        finally:
            lease.close()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:pa55%zzword@db/jobs",
        "postgresql://ada:pa55@word@db/jobs",
        "postgresql://ada:pa55/word@db/jobs",
        "postgresql://ada:12/word@db/jobs",
        "postgresql://ada:pa55/wo@rd@db/jobs",
        "postgresql://ada:pa55/?word@db/jobs",
        "postgresql://ada:pa55word@[db/jobs",
        "postgresql://ada:pa55word@db:high/jobs",
        "postgresql://ada:pa55\udcffword@db/jobs",
        "postgresql://ada:pa55%ffword@db/jobs",
    ],
)
def test_malformed_address_is_refused_without_showing_its_password(url: str) -> None:
    with pytest.raises(StartError, match=r"^--journal: the address cannot be read; it must be postgresql://") as caught:
        conninfo_of(url, "--journal")
    assert not any(part in str(caught.value) for part in ("pa55", "word@", "wo@", "12/", "rd@"))


def test_invalid_host_name_is_unreachable() -> None:
    with pytest.raises(DatabaseUnavailable, match=r"^PostgreSQL: .*label"):
        DatabaseConnection(Hosts(conninfo_of("postgresql://ada@db..example/jobs", "--journal")), "test", 1.0).run(
            "SELECT 1"
        )


@pytest.mark.parametrize("hosts", ["db", "db:5432", "db1,db2:5433", "db1:1,db2", "[::1]:5432", ""])
def test_address_may_have_several_hosts(hosts: str) -> None:
    parameters = conninfo_to_dict(conninfo_of(f"postgresql://ada:p%40%2F%25@{hosts}/jobs", "--journal"))
    assert (parameters["user"], parameters["password"], parameters["dbname"]) == ("ada", "p@/%", "jobs")
