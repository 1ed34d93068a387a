r"""Messages of job frameworks: the class, arguments, attempt and exception in a body, by parsing alone. Pure.

Nothing is unpickled or unserialized into objects. A body is parsed as json_fields describes, so a larger body is not a
message. These formats are known, by their source code:

Laravel
    A JSON object with `job`, `displayName` and `data`. For a job object, `data` has `commandName` and `command`, the
    object in PHP's serialization format (see php_values), or encrypted. Its properties are the arguments.
    Source: createObjectPayload and createStringPayload in src/Illuminate/Queue/Queue.php of laravel/framework.

Symfony Messenger
    A JSON object with `body` and `headers`. If `headers` has a `type`, that is the class, `body` is the message in
    JSON, and each header `X-Message-Stamp-CLASS` is a JSON list of stamps. Otherwise `body` is the Envelope in PHP's
    serialization format, after addslashes, and as base64 if that is not UTF-8. The last RedeliveryStamp counts the
    retries, and the last ErrorDetailsStamp has the exception.
    Source: Connection::send in Bridge/Beanstalkd/Transport/Connection.php, and Serializer.php and PhpSerializer.php in
    Transport/Serialization, below src/Symfony/Component/Messenger of symfony/symfony.

ActiveJob
    A JSON object with `job_class`, `arguments`, `executions`, and in `exception_executions` the number of failures by
    the exceptions of a retry_on. An adapter wraps the object: it is the only element of `args`.
    Source: activejob/lib/active_job/core.rb and queue_adapters/backburner_adapter.rb of rails/rails.

Backburner
    A JSON object with `class` and `args`.
    Source: Worker.enqueue in lib/backburner/worker.rb of nesquena/backburner.

Celery
    A JSON object with `body`, `headers` and `properties`; `properties.body_encoding` says whether `body` is base64.
    Protocol 2 has `task` and `retries` in `headers`, and the body is [args, kwargs, embed]. The body of protocol 1 is
    an object with `task`, `args`, `kwargs` and `retries`. The arguments are read if the body is JSON. Otherwise, such
    as for a pickled body, the texts in the headers `argsrepr` and `kwargsrepr` replace them.
    Source: as_task_v2 and as_task_v1 in celery/app/amqp.py of celery/celery, and Message in
    kombu/transport/virtual/base.py of celery/kombu.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache
from math import isinf
from typing import Annotated, Any, Final, Literal, NamedTuple

from msgspec import Meta, field

from greenstalk_server.web.framework.api.values import ResponseModel
from greenstalk_server.web.reads.jobs.json_fields import Root, parse_body, shortened
from greenstalk_server.web.reads.jobs.php_values import PhpArray, PhpFormatError, PhpObject, parse_php

MAX_CLASS: Final = 200
"""Maximum characters of a class."""

MAX_EXCEPTION: Final = 1000
"""Maximum characters of an exception."""

MAX_ARGUMENTS: Final = 1000
"""Maximum values in the arguments; further ones are left out."""

MAX_ARGUMENT_DEPTH: Final = 12
"""Maximum nesting of arguments; OMITTED replaces deeper values."""

MAX_TEXT: Final = 1000
"""Maximum characters of a text in the arguments."""

MAX_TRACE: Final = 16 * 1024
"""Maximum characters of a trace."""

OMITTED: Final = "…"

Framework = Literal["Laravel", "Symfony Messenger", "ActiveJob", "Backburner", "Celery"]

_ENVELOPE: Final = r"Symfony\Component\Messenger\Envelope"
_STAMP: Final = "Symfony\\Component\\Messenger\\Stamp\\"
_STAMP_HEADER: Final = "X-Message-Stamp-"
_SLASHED: Final = re.compile(r"\\(.)", re.DOTALL)

_QUEUEABLE: Final = frozenset(
    ("job", "connection", "queue", "chainConnection", "chainQueue", "chainCatchCallbacks", "delay", "afterCommit",
     "middleware", "chained", "tries", "timeout", "messageGroup", "deduplicator")
)  # fmt: skip
"""Properties of Laravel's Queueable and InteractsWithQueue, which are not arguments if they are null or empty."""

Object = Mapping[str, object]


class DecodedJob(ResponseModel):
    """The message of a job framework in a body."""

    framework: Framework
    class_name: Annotated[
        str, Meta(description="Class of the job, or name of the task.", examples=["App\\Jobs\\SendMail"])
    ] = field(name="class")
    arguments: Annotated[
        Any, Meta(description="The arguments, shortened; null if they are encrypted or cannot be read.")
    ] = None
    attempt: Annotated[
        int | None, Meta(description="Number of the next attempt, from 1; null if the message does not count attempts.")
    ] = None
    exception: Annotated[str, Meta(description="The last exception, on one line; empty if the message has none.")] = ""
    trace: Annotated[str, Meta(description="Stack trace of that exception; empty if the message has none.")] = ""


class _Format(NamedTuple):
    """A format of messages.

    class_of    returns the class of a message; empty if the object is not a message of this format.
    decode      returns the message, whose class is given.
    """

    class_of: Callable[[Object], str]
    decode: Callable[[Object, str], DecodedJob]


def class_of(body: bytes) -> str:
    """Return the class of the message in *body*; empty if there is none. Takes at most 5 ms."""
    found = _format_of(parse_body(body))
    return found[1] if found is not None else ""


def decode(body: bytes) -> DecodedJob | None:
    """Return the message in *body*; None if its format is unknown. Takes at most 10 ms."""
    return decode_root(parse_body(body))


def decode_root(root: Root | None) -> DecodedJob | None:
    """Return the message in the body that was parsed to *root*; None if its format is unknown."""
    found = _format_of(root)
    if found is None or not isinstance(root, dict):
        return None
    return found[0].decode(root, found[1])


def _format_of(root: Root | None) -> tuple[_Format, str] | None:
    if not isinstance(root, dict) or root.keys().isdisjoint(_MARKS):
        return None
    for one in _FORMATS:
        if name := one.class_of(root):
            return one, shortened(name, MAX_CLASS)
    return None


# Laravel


def _laravel_class(root: Object) -> str:
    if "data" not in root or not _text(root.get("job")):
        return ""
    return _text(root.get("displayName")) or _text(_object(root["data"]).get("commandName"))


def _laravel(root: Object, class_name: str) -> DecodedJob:
    data = root["data"]
    if isinstance(data, dict) and isinstance(command := data.get("command"), str):
        found = _php(command)
        properties = found.properties if isinstance(found, PhpObject) else {}
        data = {name: value for name, value in properties.items() if value or name not in _QUEUEABLE} or None
    return DecodedJob("Laravel", class_name, _bounded(data), attempt=_next(root.get("attempts")))


# Symfony Messenger


def _symfony_class(root: Object) -> str:
    if not isinstance(root.get("body"), str) or not isinstance(root.get("headers"), dict | list):
        return ""
    if name := _text(_object(root["headers"]).get("type")):
        return name
    message = _envelope(root)[0]
    return message.class_name if isinstance(message, PhpObject) else ""


def _symfony(root: Object, class_name: str) -> DecodedJob:
    if _text(_object(root["headers"]).get("type")):
        message: object = parse_body(_text(root["body"]).encode(errors="replace"))
        stamps = _header_stamps(_object(root["headers"]))
    else:
        message, stamps = _envelope(root)
    retries = [stamp.get("retryCount") for stamp in stamps(f"{_STAMP}RedeliveryStamp")]
    errors = stamps(f"{_STAMP}ErrorDetailsStamp")
    error = errors[-1] if errors else {}
    return DecodedJob(
        "Symfony Messenger",
        class_name,
        _bounded(message.properties if isinstance(message, PhpObject) else message),
        attempt=_next(retries[-1] if retries else 0),
        exception=_joined(_text(error.get("exceptionClass")), _text(error.get("exceptionMessage"))),
        trace=_text(_fields(error.get("flattenException")).get("traceAsString"))[:MAX_TRACE],
    )


_Stamps = Callable[[str], list[Object]]
"""Returns the fields of the stamps of a class, the oldest first."""


def _header_stamps(headers: Object) -> _Stamps:
    def stamps(name: str) -> list[Object]:
        given = parse_body(_text(headers.get(_STAMP_HEADER + name)).encode(errors="replace"))
        return [_object(stamp) for stamp in given] if isinstance(given, list) else []

    return stamps


def _envelope(root: Object) -> tuple[object, _Stamps]:
    """Return the message and the stamps of the envelope in PHP's format; the message is None if there is none."""
    found = _parsed_envelope(_text(root["body"]))
    properties: Mapping[int | str, object] = found.properties if found is not None else {}
    all_stamps = _fields(properties.get("stamps"))

    def stamps(name: str) -> list[Object]:
        return [_fields(stamp) for stamp in _fields(all_stamps.get(name)).values()]

    return properties.get("message"), stamps


@lru_cache(maxsize=1)  # the class and the message of a body are read one after the other
def _parsed_envelope(source: str) -> PhpObject | None:
    if not source.endswith("}"):
        try:
            source = base64.b64decode(source, validate=True).decode("latin-1")
        except ValueError:
            return None
        found = _php(_unslashed(source), "latin-1")
    else:
        found = _php(_unslashed(source))
    return found if isinstance(found, PhpObject) and found.class_name == _ENVELOPE else None


def _unslashed(source: str) -> str:
    """Return *source* as it was before PHP's addslashes."""
    return _SLASHED.sub(lambda found: "\0" if found[1] == "0" else found[1], source)


# ActiveJob and Backburner


def _active_job(root: Object) -> Object | None:
    """Return the data of ActiveJob in *root*, or in the wrapper of an adapter."""
    args = root.get("args")
    if "job_class" not in root and isinstance(args, list) and len(args) == 1:
        root = _object(args[0])
    return root if _text(root.get("job_class")) and isinstance(root.get("arguments"), list) else None


def _active_job_class(root: Object) -> str:
    found = _active_job(root)
    return _text(found["job_class"]) if found is not None else ""


def _active_job_message(root: Object, class_name: str) -> DecodedJob:
    data = _active_job(root) or {}
    failures = list(_object(data.get("exception_executions")))
    return DecodedJob(
        "ActiveJob",
        class_name,
        _bounded(_without_marks(data.get("arguments"), MAX_ARGUMENT_DEPTH)),
        attempt=_next(data.get("executions")),
        exception=shortened(failures[-1].strip("[]"), MAX_EXCEPTION) if failures else "",
    )


def _without_marks(value: object, depth: int) -> object:
    """Return *value* without the fields that ActiveJob adds to hashes, such as `_aj_symbol_keys`."""
    if depth and isinstance(value, list):
        return [_without_marks(one, depth - 1) for one in value[:MAX_ARGUMENTS]]
    if depth and isinstance(value, dict):
        return {key: _without_marks(one, depth - 1) for key, one in value.items() if not _is_mark(key)}
    return value


def _is_mark(key: str) -> bool:
    return key in ("_aj_symbol_keys", "_aj_ruby2_keywords", "_aj_hash_with_indifferent_access")


def _backburner_class(root: Object) -> str:
    return _text(root.get("class")) if isinstance(root.get("args"), list) else ""


def _backburner(root: Object, class_name: str) -> DecodedJob:
    return DecodedJob("Backburner", class_name, _bounded(root["args"]))


# Celery


def _celery_class(root: Object) -> str:
    if isinstance(root.get("headers"), dict) and isinstance(root.get("properties"), dict):
        return _text(_object(root["headers"]).get("task")) or _text(_object(_celery_body(root)).get("task"))
    is_task = isinstance(root.get("args"), list) and isinstance(root.get("kwargs"), dict)
    return _text(root.get("task")) if is_task else ""


def _celery(root: Object, class_name: str) -> DecodedJob:
    headers = _object(root.get("headers"))
    content = _celery_body(root) if "properties" in root else root
    if isinstance(content, list) and len(content) > 1:  # protocol 2
        args, kwargs = content[0], content[1]
    elif isinstance(content, dict):  # protocol 1
        args, kwargs = content.get("args"), content.get("kwargs")
        headers = content
    else:
        args, kwargs = headers.get("argsrepr"), headers.get("kwargsrepr")
    arguments = None if args is None and kwargs is None else {"args": args, "kwargs": kwargs}
    return DecodedJob("Celery", class_name, _bounded(arguments), attempt=_next(headers.get("retries") or 0))


def _celery_body(root: Object) -> Root | None:
    """Return the content of a message's body if it is JSON."""
    if root.get("content-type") != "application/json":
        return None
    body = _text(root.get("body"))
    if _object(root.get("properties")).get("body_encoding") != "base64":
        return parse_body(body.encode(errors="replace"))
    try:
        return parse_body(base64.b64decode(body, validate=True))
    except ValueError:
        return None


_FORMATS: Final[tuple[_Format, ...]] = (
    _Format(_active_job_class, _active_job_message),
    _Format(_backburner_class, _backburner),
    _Format(_laravel_class, _laravel),
    _Format(_celery_class, _celery),
    _Format(_symfony_class, _symfony),
)

_MARKS: Final = frozenset({"args", "headers", "job", "job_class"})
"""Names of fields: each message has at least one of them."""


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _object(value: object) -> Object:
    return value if isinstance(value, dict) else {}


def _fields(value: object) -> Object:
    """Return the fields of an object of JSON or PHP, or of an array of PHP; empty if *value* is neither."""
    return _object(value.properties if isinstance(value, PhpObject) else value)


def _php(source: str, encoding: str = "utf-8") -> object:
    try:
        return parse_php(source.encode(encoding, "replace"))
    except PhpFormatError:
        return None


def _next(attempts: object) -> int | None:
    """Return the number of the next attempt after *attempts*; None if that is not a number."""
    if isinstance(attempts, bool) or not isinstance(attempts, int) or not 0 <= attempts < 2**31:
        return None
    return attempts + 1


def _joined(kind: str, message: str) -> str:
    return shortened(f"{kind}: {message}" if kind and message else kind or message, MAX_EXCEPTION)


def _bounded(value: object) -> object:
    """Return *value* as JSON, with at most MAX_ARGUMENTS values, MAX_ARGUMENT_DEPTH levels, and MAX_TEXT characters.

    A list of PHP becomes a list. An object of PHP begins with its class, as `__class__`.
    """
    left = MAX_ARGUMENTS

    def plain(value: object, depth: int) -> object:
        nonlocal left
        left -= 1
        if isinstance(value, str):
            return value if len(value) <= MAX_TEXT else value[:MAX_TEXT] + OMITTED
        if isinstance(value, list | dict | PhpObject) and depth == 0:
            return OMITTED
        if isinstance(value, list):
            return [plain(one, depth - 1) for one in value if left > 0]
        if isinstance(value, PhpObject):
            own: dict[str, object] = {"__class__": value.class_name}
            own |= {"__text__": plain(value.text, 1)} if value.text else {}
            return own | {str(key): plain(one, depth - 1) for key, one in value.properties.items() if left > 0}
        if isinstance(value, PhpArray) and value.is_list:
            return [plain(one, depth - 1) for one in value.values() if left > 0]
        if isinstance(value, dict):
            return {str(key)[:MAX_TEXT]: plain(one, depth - 1) for key, one in value.items() if left > 0}
        if isinstance(value, Decimal):
            return str(value) if isinf(float(value)) else float(value)
        return value

    return plain(value, MAX_ARGUMENT_DEPTH)
