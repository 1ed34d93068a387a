"""Recognition of commands by prefix, and valid tube names."""

from .script import parse_corpus

CONVERSATIONS = parse_corpus(r"""
== verbs-alone-that-are-unknown
a> put
a> use
a> touch
a> delete
a> kick
a> kick-job
a> peek
a> bury
a> release
a> watch
a> ignore
a> list-tube-used

== verbs-alone-that-are-refused
a> stats-job
a> stats-tube
a> pause-tube
a> reserve-job
a> reserve-with-timeout
a> list-tube-used

== verbs-with-one-space-and-no-argument
a> put\x20
a> use\x20
a> touch\x20
a> delete\x20
a> kick\x20
a> kick-job\x20
a> peek\x20
a> bury\x20
a> release\x20
a> watch\x20
a> ignore\x20
a> stats-job\x20
a> stats-tube\x20
a> reserve-job\x20
a> pause-tube\x20
a> list-tube-used

== reserve-with-anything-after-it
a> reservex
a> reserve\x20
a> reserve 0
a> reserve-
a> reserve-job
a> reserve-jobs 1
a> reserve-with-time 0
a> list-tube-used

== stats-with-anything-after-it
a> stats\x20
a> statsx
a> stats-
a> stats-foo
a> stats-tube
a> stats-tubes default
a> stats default
a> stats-jobx 1
a> list-tube-used

== list-tubes-with-anything-after-it
a> list-tubes\x20
a> list-tubesx
a> list-tubes-
a> list-tubes-watch
a> list-tubes 1
a> list-tube-used

== list-tube-used-with-anything-after-it
a> list-tube-used\x20
a> list-tube-usedx
a> list-tube-used x
a> list-tube-used

== list-tubes-watched-with-anything-after-it
a> list-tubes-watched\x20
a> list-tubes-watchedx
a> list-tubes-watched x
a> list-tubes-watched

== peek-ready-with-anything-after-it
a> peek-readyx
a> peek-ready\x20
a> peek-ready 1
a> peek-ready

== peek-delayed-with-anything-after-it
a> peek-delayedx
a> peek-delayed\x20
a> peek-delayed 1
a> peek-delayed

== peek-buried-with-anything-after-it
a> peek-buriedx
a> peek-buried\x20
a> peek-buried 1
a> peek-buried

== peek-variants-that-do-not-exist
a> peek-
a> peek-read
a> peek-job 1
a> peek-held
a> list-tube-used

== refused-arguments-do-not-count
a> stats\x20
a> reserve 0
a> list-tubes\x20
a> list-tube-used\x20
a> list-tubes-watched\x20
a> peek-ready\x20
a> peek-delayed\x20
a> peek-buried\x20
a> peek x
a> delete x
a> release x
a> bury x
a> touch x
a> use *
a> watch *
a> ignore *
a> stats-job x
a> stats-tube *
a> kick x
a> kick-job x
a> reserve-job x
a> stats

== release-with-missing-arguments
a> release 1
a> release 1 0
a> release 1 0 0 0
a> release 1 0 0\x20

== bury-with-missing-arguments
a> bury 1
a> bury 1 0 0
a> bury 1 0\x20

== use-every-allowed-character
a> use ABCDEFGHIJKLMNOPQRSTUVWXYZ
a> use abcdefghijklmnopqrstuvwxyz
a> use 0123456789
a> use +/;.$_()-
a> list-tube-used

== use-every-forbidden-character
a> use a!
a> use a"
a> use a#
a> use a%
a> use a&
a> use a'
a> use a*
a> use a,
a> use a:
a> use a<
a> use a=
a> use a>
a> use a?
a> use a@
a> use a[
a> use a\\
a> use a]
a> use a^
a> use a`
a> use a|
a> use a~
a> use a\x7b
a> use a\x7d
a> use a\x7f
a> use a\x80
a> list-tube-used

== use-forbidden-character-in-front
a> use *a
a> use .a
a> use /a
a> use +a
a> use $a
a> use (a
a> use _a
a> use ;a
a> list-tubes

== names-that-begin-with-a-hyphen
a> use -
a> use -a
a> use --
a> watch -a
a> ignore -a
a> stats-tube -a
a> use a-
a> list-tube-used

== names-of-one-byte
a> use a
a> use 0
a> use +
a> use .
a> list-tubes

== name-of-200-bytes
a> use {n*200}
a> watch {n*200}
a> ignore {n*200}
a> stats-tube {n*200}

== name-of-201-bytes
a> use {n*201}
a> watch {n*201}
a> ignore {n*201}
a> stats-tube {n*201}
a> list-tube-used

== names-with-an-extra-space
a> use  a
a> use a\x20
a> use a b
a> watch  a
a> watch a\x20
a> watch a b
a> ignore  a
a> ignore a\x20
a> ignore a b
a> stats-tube  a
a> stats-tube a\x20
a> stats-tube default\x20
a> stats-tube  default
a> list-tubes

== names-with-a-tab
a> use \ta
a> use a\t
a> watch \ta
a> ignore a\t
a> stats-tube default\t

== empty-names
a> use\x20
a> watch\x20
a> ignore\x20
a> stats-tube\x20

== names-that-yaml-misreads
a> use 123
a> watch true
a> watch null
a> watch 0x1f
a> watch 1.5
a> watch 1e3
a> watch no
a> watch 2024-01-01
a> list-tubes
a> list-tubes-watched
a> stats-tube 123
a> stats-tube true
a> put 0 0 60 1\r\nx
a> stats-job {1}

== names-are-case-sensitive
a> use Foo
a> watch foo
a> watch FOO
a> list-tubes
a> stats-tube FoO

== names-that-look-like-commands
a> use quit
a> watch stats
a> list-tubes-watched
a> stats-tube quit
""")
