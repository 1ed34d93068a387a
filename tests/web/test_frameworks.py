"""Messages of job frameworks: real ones are decoded, and no body raises an exception or takes long."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenstalk_server.web.reads.jobs.frameworks import (
    MAX_ARGUMENTS,
    MAX_CLASS,
    MAX_TEXT,
    DecodedJob,
    class_of,
    decode,
)
from greenstalk_server.web.reads.jobs.json_fields import MAX_PARSED
from tests.support.pages import block

from .conftest import Queue
from .test_body import JSON_VALUES

BODIES = Path(__file__).parent / "frameworks"

LINES = [{"sku": "a-1", "cents": 995}]
INVOICE = {"to": "zoë@example.org", "order": 4711, "lines": LINES}
MAIL = {
    "tries": 5,
    "options": {"html": True, "cc": ["ops@example.org", "dev@example.org"], "3": 1.5},
    "attachments": [],
    "to": "zoë@example.org",
    "order": 4711,
    "urgency": "App\\Jobs\\Urgency::High",
    "extra": {"__class__": "stdClass", "note": 'a "quoted"\nline'},
    "queue": "mail",
}
USER = {
    "__class__": "Illuminate\\Contracts\\Database\\ModelIdentifier",
    "class": "App\\Models\\User",
    "id": 17,
    "relations": [],
    "connection": None,
}
TASK = {"args": [4711, "zoë"], "kwargs": {"lines": [{"sku": "a-1"}]}}
ERROR = {
    "exception": 'RuntimeException: HTTP 503 from "upstream"',
    "trace": "#0 /srv/shop/make_symfony.php(71): charge()\n#1 {main}",
}


def body_of(name: str) -> bytes:
    """Return a body that the script beside it has made with the framework."""
    return (BODIES / f"{name}.body").read_bytes()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("laravel", DecodedJob("Laravel", "App\\Jobs\\SendMail", MAIL)),
        ("laravel-model", DecodedJob("Laravel", "App\\Jobs\\ChargeUser", {"user": USER, "lines": LINES})),
        ("laravel-encrypted", DecodedJob("Laravel", "App\\Jobs\\Secret")),
        ("laravel-string", DecodedJob("Laravel", "App\\Jobs\\Import", {"file": "orders.csv"})),
        ("symfony-json", DecodedJob("Symfony Messenger", "App\\Message\\SendInvoice", INVOICE, 1)),
        ("symfony-json-failed", DecodedJob("Symfony Messenger", "App\\Message\\SendInvoice", INVOICE, 3, **ERROR)),
        ("symfony-php", DecodedJob("Symfony Messenger", "App\\Message\\SendInvoice", INVOICE, 1)),
        ("symfony-php-failed", DecodedJob("Symfony Messenger", "App\\Message\\SendInvoice", INVOICE, 3, **ERROR)),
        (
            "symfony-php-base64",
            DecodedJob("Symfony Messenger", "App\\Message\\SendInvoice", {"to": "\ufffd", "order": 1, "lines": []}, 1),
        ),
        ("activejob", DecodedJob("ActiveJob", "ChargeJob", [4711, {"lines": LINES}], 1)),
        ("activejob-alone", DecodedJob("ActiveJob", "ChargeJob", [4711, {"lines": LINES}], 1)),
        ("activejob-retried", DecodedJob("ActiveJob", "ChargeJob", [4711, {"lines": LINES}], 3, "UpstreamError")),
        ("backburner", DecodedJob("Backburner", "NewsletterSender", [17, {"subject": "Hello"}])),
        ("celery", DecodedJob("Celery", "shop.tasks.charge", TASK, 3)),
        ("celery-1", DecodedJob("Celery", "shop.tasks.charge", TASK, 2)),
        (
            "celery-pickle",
            DecodedJob(
                "Celery", "shop.tasks.charge", {"args": "[4711, 'zoë']", "kwargs": "{'lines': [{'sku': 'a-1'}]}"}, 1
            ),
        ),
    ],
)
def test_real_message_is_decoded(name: str, found: DecodedJob) -> None:
    assert decode(body_of(name)) == found
    assert class_of(body_of(name)) == found.class_name


def test_message_matches_the_page(queue: Queue) -> None:
    (id,) = queue.put("mail", body=body_of("activejob-retried"))
    found = queue.app().test_client().get(f"/api/v1/jobs/{id}").json
    assert found["message"] == json.loads(block("frameworks.md", "json", "{"))


@pytest.mark.parametrize(
    "body",
    [
        b"", b"hello", b"[1]", b"{}", b'{"class":"RouteError"}', b'{"class":7,"args":[]}', b'{"class":"A","args":{}}',
        b'{"job":"x","kind":"mail"}', b'{"body":"hello","headers":{}}', b'{"body":"O:1:\\"A\\":0:{}","headers":[]}',
        b'{"headers":{"task":7},"properties":{},"body":"x"}', b'{"task":"clean","args":[]}',
        b'{"job_class":"A","arguments":"x"}', b'{"class":"A","args":[' + b"1," * MAX_PARSED + b"1]}",
    ],
)  # fmt: skip
def test_other_bodies_are_no_messages(body: bytes) -> None:
    assert decode(body) is None
    assert class_of(body) == ""


def test_pickled_arguments_are_never_loaded() -> None:
    exploit = base64.b64encode(b"cos\nsystem\n(S'exit 1'\ntR.").decode()
    headers = {"task": "a.b", "retries": 0}
    message = {"headers": headers, "properties": {"body_encoding": "base64"}, "body": exploit}
    for content_type in ("application/json", "application/x-python-serialize"):
        found = decode(json.dumps(message | {"content-type": content_type}).encode())
        assert found == DecodedJob("Celery", "a.b", None, 1)


def test_arguments_are_bounded() -> None:
    body = {"class": "A" * 900, "args": ["x" * 9000, [[[[[[[[[[[[["deep"]]]]]]]]]]]]], *range(5000)]}
    found = decode(json.dumps(body).encode())
    assert found is not None and isinstance(found.arguments, list)
    assert len(found.class_name) == MAX_CLASS
    assert len(found.arguments) <= MAX_ARGUMENTS
    assert found.arguments[0] == "x" * MAX_TEXT + "…"
    assert "deep" not in str(found.arguments[1])


def test_numbers_that_json_cannot_have_are_texts() -> None:
    found = decode(b'{"class":"A","args":[1.5,1e400,100000000000000000000]}')
    assert found is not None
    assert found.arguments == [1.5, "1E+400", 10**20]


KEYS = st.sampled_from(
    ["class", "args", "job", "data", "displayName", "command", "commandName", "body", "headers", "properties", "task",
     "kwargs", "job_class", "arguments", "executions", "exception_executions", "type", "content-type", "retries"]
)  # fmt: skip
PHP = st.sampled_from([path.read_text() for path in BODIES.glob("*.body")]).map(lambda body: body[: len(body) // 2])
VALUES = st.recursive(
    JSON_VALUES | st.sampled_from(["application/json", "base64", "TzoxOiJBIjowOnt9", 'O:1:"A":1:{i:0;N;}']) | PHP,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=20,
)


@given(st.binary() | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_a_message_or_none(body: bytes) -> None:
    found = decode(body)
    assert class_of(body) == (found.class_name if found is not None else "")
    if found is not None:
        assert 0 < len(found.class_name) <= MAX_CLASS
        msgspec.json.encode(found.arguments)


@given(st.sampled_from(sorted(BODIES.glob("*.body"))), st.data())
def test_damaged_message_raises_no_exception(path: Path, data: st.DataObject) -> None:
    body = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.sampled_from(b'"0;:{}[]\\a9'))
    decode(bytes(body))


def _symfony(php: str) -> str:
    return json.dumps({"body": php, "headers": []})


HOSTILE = [
    json.dumps({"class": "A", "args": [[]] * 16_000}),
    json.dumps({"class": "A", "args": ["x" * 60_000]}),
    '{"class":"A","args":' + "[" * 1000 + "]" * 1000 + "}",
    json.dumps({"job": "A", "displayName": "A", "data": {"command": "a:30000:{" + "i:1;N;" * 9000}}),
    json.dumps({"job": "A", "displayName": "A", "data": {"command": 'O:1:"A":1:{i:0;' * 3000}}),
    json.dumps({"job_class": "A", "arguments": [{f"k{at}": at} for at in range(4000)]}),
    _symfony('O:36:"Symfony\\\\Component\\\\Messenger\\\\Envelope":9:{' + "i:1;a:1:{i:0;N;}" * 3000 + "}"),
    _symfony("\\" * 30_000 + "}"),
    _symfony(base64.b64encode(b"a:1:{i:0;" * 5000).decode()),
    json.dumps({"headers": {"type": "A"}, "body": "[" + "1," * 29_000 + "1]"}),
]


@pytest.mark.parametrize("body", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_message_takes_bounded_time(body: str) -> None:
    times = []
    for _ in range(5):
        begun = time.thread_time()
        decode(body.encode())
        times.append(time.thread_time() - begun)
    assert min(times) < 0.02
