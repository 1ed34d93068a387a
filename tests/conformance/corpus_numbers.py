"""Numbers: each numeric argument of each command, in each form that resembles a number.

The conversations of the strict arguments combine two tables. `kick`, `reserve-with-timeout` and `pause-tube` have rules
of their own, so their conversations are written out.
"""

from collections.abc import Iterator

from .script import Conversation, parse_corpus

_PUT = r"a> put 0 0 60 1\r\nx"
_RESERVED = [_PUT, "a> reserve-job {@}"]

STRICT_ARGUMENTS: dict[str, tuple[list[str], str, str]] = {
    # argument: steps before each form, the command, and a valid value; {@} is a separate job for each form.
    "delete-id": ([_PUT], "delete ?", "{@}"),
    "peek-id": ([_PUT], "peek ?", "{@}"),
    "touch-id": (_RESERVED, "touch ?", "{@}"),
    "release-id": (_RESERVED, "release ? 0 0", "{@}"),
    "release-pri": (_RESERVED, "release {@} ? 0", "7"),
    "release-delay": (_RESERVED, "release {@} 0 ?", "7"),
    "bury-id": (_RESERVED, "bury ? 0", "{@}"),
    "bury-pri": (_RESERVED, "bury {@} ?", "7"),
    "reserve-job-id": ([_PUT], "reserve-job ?", "{@}"),
    "kick-job-id": ([*_RESERVED, "a> bury {@} 0"], "kick-job ?", "{@}"),
    "stats-job-id": ([_PUT], "stats-job ?", "{@}"),
    "pause-tube-delay": ([], "pause-tube default ?", "7"),
}
"""The four numbers of put are in PUT_ARGUMENTS, since the body after a refused put is read as a command."""

FORMS: dict[str, list[str]] = {
    # "?" is the valid value.
    "signs": ["+?", "-?", "- ?", "--?", "-0"],
    "garbage": ["0x?", "?a", "a?", "?.x", "?e1", "?,", "1_0", "'?'", r"?\n", r"\n?", r"?\x80"],
    "spaces": [" ?", "     ?", r"\t?", r" \t?", r"?\x20", r"?\x20\x20", r"?\t"],
    "missing-or-extra": ["", r"\x20", "? ?", "? x"],
    "leading-zeros": ["00?", "{0*100}?"],
    "limits-of-u32": ["0", "4294967295", "4294967296", "04294967295", "42949672950"],
    "limits-of-u64": ["18446744073709551615", "18446744073709551616", "99999999999999999999", "{9*40}"],
}

PUT_ARGUMENTS = {
    "put-pri": "put ? 0 60 1",
    "put-delay": "put 0 ? 60 1",
    "put-ttr": "put 0 0 ? 1",
    "put-bytes": "put 0 0 60 ?",
}

PUT_FORMS_REFUSED = {
    "signs": ["+1", "-1", "- 1", "-0"],
    "garbage": ["0x1", "1a", "a1", "1.x", "1e1", r"1\n", "1_0"],
    "tabs": [r"\t1", r" \t1", r"1\t"],
    "too-large": ["4294967296", "18446744073709551615", "18446744073709551616", "{9*40}"],
}

PUT_FORMS_ACCEPTED = ["1", "01", "{0*60}1", " 1", "      1"]


def _strict(argument: str) -> Iterator[str]:
    before, command, valid = STRICT_ARGUMENTS[argument]
    for form_name, forms in FORMS.items():
        yield f"== {argument}-{form_name}"
        for number, form in enumerate(forms, start=1):
            line = command.replace("?", form.replace("?", valid))
            for step in [*before, f"a> {line}"]:
                yield step.replace("{@}", f"{{{number}}}")
        yield "a> stats"


def _put(argument: str, line: str) -> Iterator[str]:
    for form_name, forms in PUT_FORMS_REFUSED.items():
        yield f"== {argument}-{form_name}"
        for form in forms:
            yield f"a> {line.replace('?', form)}"
        yield "a> stats"
    yield f"== {argument}-zeros-and-spaces-are-accepted"
    for number, form in enumerate(PUT_FORMS_ACCEPTED, start=1):
        yield rf"a> {line.replace('?', form)}\r\nx"
        yield f"a> stats-job {{{number}}}"


def _generated() -> list[Conversation]:
    lines = [line for argument in STRICT_ARGUMENTS for line in _strict(argument)]
    lines += [line for argument, put in PUT_ARGUMENTS.items() for line in _put(argument, put)]
    return parse_corpus("\n".join(lines))


WRITTEN_OUT = parse_corpus(r"""
== put-largest-numbers
a> put 4294967295 4294967295 4294967295 1\r\nx
a> stats-job {1}
a> peek-delayed

== put-smallest-numbers
a> put 0 0 0 0\r\n
a> stats-job {1}

== put-ttr-zero-becomes-one
a> put 0 4294967295 0 1\r\nx
a> stats-job {1}

== kick-bound-zero
a> kick 0
a> kick 00
a> kick -0
a> kick +0

== kick-bound-accepted-forms
a> put 0 4294967295 60 1\r\nx
a> kick +1
a> put 0 4294967295 60 1\r\nx
a> kick  1
a> put 0 4294967295 60 1\r\nx
a> kick \t1
a> put 0 4294967295 60 1\r\nx
a> kick \n1
a> put 0 4294967295 60 1\r\nx
a> kick 01
a> put 0 4294967295 60 1\r\nx
a> kick 1x
a> put 0 4294967295 60 1\r\nx
a> kick 1.9
a> put 0 4294967295 60 1\r\nx
a> kick 1 2
a> put 0 4294967295 60 1\r\nx
a> kick 1\x20
a> put 0 4294967295 60 1\r\nx
a> kick \x0b1
a> put 0 4294967295 60 1\r\nx
a> kick \x0c1

== kick-bound-hexadecimal-is-a-zero
a> put 0 4294967295 60 1\r\nx
a> kick 0x10

== kick-bound-negative-wraps
a> put 0 4294967295 60 1\r\nx
a> put 0 4294967295 60 1\r\nx
a> kick -1

== kick-bound-negative-in-full
a> put 0 4294967295 60 1\r\nx
a> kick -18446744073709551615
a> kick -18446744073709551616
a> kick -18446744073709551617

== kick-bound-modulo-two-to-the-32
a> put 0 4294967295 60 1\r\nx
a> put 0 4294967295 60 1\r\nx
a> put 0 4294967295 60 1\r\nx
a> kick 4294967296
a> kick 4294967297
a> kick 8589934592
a> kick -4294967296
a> kick -4294967295
a> kick 4294967295

== kick-bound-largest
a> put 0 4294967295 60 1\r\nx
a> kick 18446744073709551615
a> put 0 4294967295 60 1\r\nx
a> kick 18446744073709551616
a> kick 99999999999999999999
a> kick {9*50}

== kick-refused-does-not-count
a> kick x
a> kick 18446744073709551616
a> kick 1x
a> stats

== reserve-with-timeout-without-a-number
a> reserve-with-timeout\x20
a> reserve-with-timeout x
a> reserve-with-timeout \x20\x20

== reserve-with-timeout-plus-and-space
a> reserve-with-timeout +0
a> reserve-with-timeout - 0
a> reserve-with-timeout --0

== reserve-with-timeout-tab
a> reserve-with-timeout \t0

== reserve-with-timeout-newline
a> reserve-with-timeout \n0

== reserve-with-timeout-negative
a>> reserve-with-timeout -1
a quiet
a>> list-tube-used
a quiet

== reserve-with-timeout-negative-with-trailing-garbage
a>> reserve-with-timeout -1x
b>> reserve-with-timeout -7 5
a quiet
b quiet

== reserve-with-timeout-negative-padded
a>> reserve-with-timeout   -0001
a quiet

== reserve-with-timeout-most-negative
a>> reserve-with-timeout -2147483648
a quiet

== reserve-with-timeout-negative-gets-a-job
a>> reserve-with-timeout -1
a quiet
b> put 0 0 60 1\r\nx
a<
a> stats

== reserve-with-timeout-below-i32
a> reserve-with-timeout -4294967296
a> reserve-with-timeout -9223372036854775808

== reserve-with-timeout-largest
a>> reserve-with-timeout 2147483647
a quiet

== reserve-with-timeout-beyond-i32
a>> reserve-with-timeout 2147483648
a quiet
a>> list-tube-used
a quiet

== reserve-with-timeout-beyond-u32
a> reserve-with-timeout 4294967296

== reserve-with-timeout-refused-does-not-count
a> reserve-with-timeout
a> reserve-with-timeout 99999999999999999999
a> stats

== pause-tube-refused-delay-does-not-count
a> pause-tube default x
a> pause-tube default -1
a> pause-tube default
a> stats

== pause-tube-invalid-name-counts
a> pause-tube -bad 0
a> stats

== pause-tube-name-with-an-invalid-character
a> pause-tube b*d 0
a> stats

== pause-tube-name-that-begins-with-an-invalid-character
a> pause-tube *bd 0
a> stats

== pause-tube-name-with-a-tab
a> pause-tube \tdefault 0
a> pause-tube default\t0
a> pause-tube default\t 0
a> stats

== pause-tube-name-too-long
a> pause-tube {x*201} 0
a> stats
""")

CONVERSATIONS = [*_generated(), *WRITTEN_OUT]
