"""The counters of the server, and whole stats replies."""

from .script import parse_corpus

CONVERSATIONS = parse_corpus(r"""
== stats-of-an-idle-server
a> stats
a> stats

== stats-of-the-default-tube
a> stats-tube default
a> stats-tube default

== stats-of-a-job
a> put 10 0 60 5\r\nhello
a> stats-job {1}

== stats-of-names-that-yaml-reads-as-strings
a> use mail-1.x/y;$(z)_+
a> stats-tube mail-1.x/y;$(z)_+
a> use 3d-render
a> put 0 0 60 1\r\nx
a> stats-tube 3d-render
a> stats-job {1}
a> use nullable
a> stats-tube nullable
a> use v1.0
a> stats-tube v1.0

== stats-of-names-that-yaml-misreads
a> use 123
a> put 0 0 60 1\r\nx
a> stats-tube 123
a> stats-job {1}
a> use true
a> stats-tube true
a> use Yes
a> stats-tube Yes
a> use 1e3
a> stats-tube 1e3
a> use 0x1F
a> stats-tube 0x1F
a> use 1_000
a> stats-tube 1_000
a> use .inf
a> stats-tube .inf
a> use 2026-11-22
a> stats-tube 2026-11-22

== stats-of-a-job-in-each-state
a> put 1 0 60 1\r\na
a> put 2 100 60 1\r\nb
a> put 3 0 60 1\r\nc
a> put 4 0 60 1\r\nd
a> reserve-job {3}
a> reserve-job {4}
a> bury {4} 5
b> stats-job {1}
b> stats-job {2}
b> stats-job {3}
b> stats-job {4}

== stats-of-a-missing-job
a> stats-job {1}
a> stats-job 0
a> stats-job 18446744073709551615
a> stats

== stats-counts-every-command-once
a> put 0 0 60 1\r\nx
a> use t
a> watch t
a> ignore t
a> use default
a> reserve
a> touch {1}
a> release {1} 0 0
a> reserve-with-timeout 0
a> bury {1} 0
a> kick 1
a> kick-job {1}
a> reserve-job {1}
a> peek {1}
a> peek-ready
a> peek-delayed
a> peek-buried
a> stats-job {1}
a> stats-tube default
a> list-tubes
a> list-tube-used
a> list-tubes-watched
a> pause-tube default 0
a> delete {1}
a> stats

== stats-counts-commands-that-are-not-found
a> delete {1}
a> release {1} 0 0
a> bury {1} 0
a> touch {1}
a> kick 1
a> kick-job {1}
a> peek {1}
a> peek-ready
a> peek-delayed
a> peek-buried
a> stats-job {1}
a> stats-tube nope
a> pause-tube nope 0
a> reserve-with-timeout 0
a> ignore default
a> reserve-job {1}
a> stats

== stats-does-not-count-refused-commands
a> delete x
a> release x 0 0
a> release 1 x 0
a> release 1 0 x
a> bury x 0
a> bury 1 x
a> touch x
a> kick x
a> peek x
a> stats-job x
a> stats-tube *
a> use *
a> watch *
a> ignore *
a> reserve x
a> stats

== stats-does-not-count-unknown-commands
a> foo
a>
a> LIST-TUBES
a> stats

== stats-counts-a-waiting-reserve-immediately
b>> reserve
a> stats

== stats-counts-commands-after-a-waiting-reserve-later
b+ reserve\r\nlist-tubes\r\n
a> stats
a> put 0 0 60 1\r\nx
b< 2
a> stats

== stats-total-jobs-counts-successful-puts
a> put 0 0 60 1\r\nx
a> put 0 100 60 1\r\nx
b+ put 0 0 60 1\r\nxyz
b<
b close
a> put 0 0 60 65536\r\n{x*65536}
a> put x 0 60 0
a> stats

== stats-jobs-by-state
a> put 0 0 60 1\r\na
a> put 2000 0 60 1\r\nb
a> put 0 100 60 1\r\nc
a> put 0 0 60 1\r\nd
a> put 0 0 60 1\r\ne
a> reserve-job {4}
a> reserve-job {5}
a> bury {5} 0
a> stats
a> delete {1}
a> delete {2}
a> delete {3}
a> delete {4}
a> delete {5}
a> stats

== stats-urgent-threshold
a> put 1023 0 60 1\r\na
a> put 1024 0 60 1\r\nb
a> put 4294967295 0 60 1\r\nc
a> put 0 0 60 1\r\nd
a> stats

== stats-reserved-after-disconnect
a> put 0 0 60 1\r\na
b> reserve
a> stats
b close
a> stats

== stats-with-a-long-tube-name
a> use {n*200}
a> put 0 0 60 1\r\nx
a> stats-tube {n*200}
a> stats-job {1}

== stats-job-of-another-tube
a> use t
a> put 0 0 60 1\r\nx
b> stats-job {1}

== stats-job-does-not-change-a-job
a> put 0 0 60 1\r\nx
a> stats-job {1}
a> stats-job {1}
a> reserve
a> stats-job {1}

== stats-job-pri-of-release-and-bury
a> put 1 0 60 1\r\nx
a> reserve
a> release {1} 4294967295 0
a> stats-job {1}
a> reserve
a> bury {1} 0
a> stats-job {1}

== stats-job-delay-is-of-the-last-put-or-release
a> put 0 100 60 1\r\nx
a> kick 1
a> stats-job {1}
a> reserve
a> release {1} 0 200
a> stats-job {1}
a> kick-job {1}
a> reserve
a> bury {1} 0
a> kick 1
a> stats-job {1}
a> reserve
a> release {1} 0 0
a> stats-job {1}

== stats-job-counts-kicks
a> put 0 100 60 1\r\nx
a> kick 1
a> kick 1
a> kick-job {1}
a> stats-job {1}

== stats-counts-watch-and-ignore-without-effect
a> watch default
a> ignore nope
a> ignore default
a> use default
a> stats
""")
