"""Names in the YAML of stats replies: YAML parsers read the exact name, and it is bare if possible."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from greenstalk_server.protocol.replies import stats
from greenstalk_server.protocol.stats import server_stats
from tests.support.talk import Talk
from tests.support.world import make_broker

NAME_CHARACTERS = "ABCXYZabefinotxyz0123456789-+/;.$_()"

WORDS = ("null", "true", "false", "yes", "no", "on", "off", "y", "n", ".inf", ".nan", "~", "-", "inf", "nan", "=", "<<")

BARE = [
    "default", "mail", "video.encode", "app/mail", "mail-1", "a_b", "$x", "(x)", ";x", "/", "_", "__", "+a", "+", "1a",
    "3d-render", "2026-report", "2026-11", "0xyz", "0b2", "1e5x", "nullable", "truest", "none", "nope", "offset", "one",
    "y2", "_1", "1-2", "1/2", ".hidden", "inf", "nan", "e3", "x1.5", "2001-12-144", "1+1", "$1", "v1.13",
]  # fmt: skip

QUOTED = [
    "123", "0", "007", "08", "+5", "1_000", "0x1", "0x", "0X1F", "0b1", "0b", "0o17", "1.5", "1.", ".5", "1e3", "1e+3",
    "+_", "+_1",
    "1E-3", "1.5e3", "1.2.3", "10.0.0.1", "1.13", ".", "..", "...", "+.5", ".inf", "+.INF", ".NaN", "null", "Null",
    "NULL", "true", "True", "TRUE", "tRuE", "false", "yes", "Yes", "no", "NO", "on", "On", "off", "OFF", "y", "N",
    "2001-12-14", "2001-1-1",
]  # fmt: skip


def written(name: str) -> str:
    talk = Talk()
    talk.send(b"use " + name.encode() + b"\r\n")
    reply = talk.send(b"stats-tube " + name.encode() + b"\r\n").decode()
    return reply.split("\n")[2].removeprefix("name: ")


def read(document: str) -> list[dict[str, object]]:
    """Return *document* parsed as YAML 1.1 and as YAML 1.2, each by a library."""
    return [yaml.safe_load(document), YAML(typ="safe", pure=True).load(document)]


def tube_names() -> st.SearchStrategy[str]:
    """Generate names, many of which resemble numbers, dates or words of YAML."""
    any_name = st.one_of(
        st.text(NAME_CHARACTERS, min_size=1, max_size=12),
        st.text("0123456789+-._eExobOB", min_size=1, max_size=12),
        st.from_regex(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}[Tt]?", fullmatch=True),
        st.builds(
            lambda word, sign, size: sign + word[:size].upper() + word[size:],
            st.sampled_from(WORDS).filter(lambda word: word not in ("~", "=", "<<")),
            st.sampled_from(("", "+")),
            st.integers(0, 5),
        ),
    )
    return any_name.filter(lambda name: not name.startswith("-"))


@pytest.mark.parametrize("name", BARE)
def test_name_that_is_a_string_in_yaml_is_written_bare(name: str) -> None:
    assert written(name) == name


@pytest.mark.parametrize("name", QUOTED)
def test_name_that_is_not_a_string_in_yaml_is_quoted(name: str) -> None:
    assert written(name) == f'"{name}"'


@given(tube_names())
def test_tube_name_is_read_back_by_yaml_1_1_and_1_2(name: str) -> None:
    assert [each["name"] for each in read(f"---\nname: {written(name)}\n")] == [name, name]


@given(st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(WORDS))
@example("#1 SMP PREEMPT_DYNAMIC Debian 6.1.0-9 (2023-05-08)")
@example("Kernel: 1 # two")
@example("- x")
@example('"\\')
@example("a\nb\r\n\tc\0\x85\u2028")
@example(" x ")
@example("12:30:00")
@example("é\U0001f600")
@example("")
def test_host_facts_are_read_back_by_yaml_1_1_and_1_2(text: str) -> None:
    broker = make_broker()
    broker.facts = replace(broker.facts, hostname=text, os=text, platform=text)
    document = stats(server_stats(broker, 0)).split(b"\r\n", 1)[1].decode()
    for parsed in read(document):
        assert (parsed["hostname"], parsed["os"], parsed["platform"]) == (text, text, text)


def test_host_name_that_is_not_unicode_is_written() -> None:
    """A host name may have any bytes. Python decodes invalid bytes to lone surrogates."""
    broker = make_broker()
    broker.facts = replace(broker.facts, hostname=b"\xff".decode(errors="surrogateescape"))
    assert b'hostname: "\\udcff"\n' in stats(server_stats(broker, 0))


def test_longest_name_is_checked_in_linear_time() -> None:
    for name in ("1" * 200, "1" * 199 + "x", "." * 199 + "x", "0x" + "f" * 197 + "g", "1e" + "1" * 197 + "x"):
        times = []
        for _ in range(3):  # the garbage collector may run in one of them
            started_at = time.process_time()
            written(name)
            times.append(time.process_time() - started_at)
        assert min(times) < 0.01
