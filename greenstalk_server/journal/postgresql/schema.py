"""The tables of a journal in PostgreSQL, and their migrations."""

from __future__ import annotations

from typing import Final

SCHEMA: Final = (
    """
    CREATE TABLE greenstalk_journal (
        id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        name text NOT NULL UNIQUE,
        epoch bigint NOT NULL DEFAULT 0,
        holder uuid,
        holder_name text NOT NULL DEFAULT '',
        lease_until timestamptz NOT NULL DEFAULT 'epoch',
        is_handing_over boolean NOT NULL DEFAULT false
    );
    CREATE TABLE greenstalk_batch (
        journal integer NOT NULL,
        segment bigint NOT NULL,
        at bigint NOT NULL,
        has_more boolean NOT NULL,
        data bytea NOT NULL,
        PRIMARY KEY (journal, segment, at)
    ) WITH (toast_tuple_target = 8160);
    ALTER TABLE greenstalk_batch ALTER data SET STORAGE EXTERNAL;
    CREATE TABLE greenstalk_standby (
        id uuid PRIMARY KEY,
        journal integer NOT NULL,
        name text NOT NULL,
        seen timestamptz NOT NULL,
        behind double precision NOT NULL
    );
    """,
)
"""Migrations, oldest first. The version of the schema is the number of migrations that were applied."""

SCHEMA_LOCK: Final = 0x677265656E
"""Number of the advisory lock that a server holds while it migrates."""

_TABLES_LOCK: Final = 0x677265656F
"""Number of the advisory lock that a server holds while it creates tables outside the migrations."""

LACKING_RIGHTS: Final = """
    SELECT what || ' in ' || name
    FROM unnest(ARRAY['greenstalk_journal', 'greenstalk_batch', 'greenstalk_standby']) AS name,
         unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS what
    WHERE NOT has_table_privilege(name, what)"""

MIGRATE: Final = f"""
    DO $migrate$
    DECLARE done integer;
    BEGIN
        PERFORM pg_advisory_xact_lock({SCHEMA_LOCK});
        CREATE TABLE IF NOT EXISTS greenstalk_schema (version integer NOT NULL);
        INSERT INTO greenstalk_schema SELECT 0 WHERE NOT EXISTS (SELECT FROM greenstalk_schema);
        SELECT version INTO done FROM greenstalk_schema;
        {"".join([f"IF done < {version} THEN {script} END IF;" for version, script in enumerate(SCHEMA, 1)])}
        UPDATE greenstalk_schema SET version = {len(SCHEMA)} WHERE version < {len(SCHEMA)};
    END $migrate$"""  # noqa: S608  of constants
"""One statement, so that a client that disappears cannot keep the advisory lock. It does not ask to_regclass, which may
not see a table that another session has made while this one waited for the lock."""

SEGMENTS: Final = """
    WITH RECURSIVE found AS (
        SELECT min(segment) AS number FROM greenstalk_batch WHERE journal = %s
        UNION ALL
        SELECT (SELECT min(segment) FROM greenstalk_batch WHERE journal = %s AND segment > number) FROM found
        WHERE number IS NOT NULL)
    SELECT number FROM found WHERE number IS NOT NULL"""
"""The numbers of all segments, each found by one index lookup."""


def creating(tables: str) -> str:
    """Return one statement that executes *tables*, statements that create tables outside the migrations, under a lock.

    Two sessions may not create a table at the same time, even with IF NOT EXISTS.
    """
    return f"DO $create$ BEGIN PERFORM pg_advisory_xact_lock({_TABLES_LOCK}); {tables} END $create$"
