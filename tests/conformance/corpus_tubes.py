"""Tubes: use, watch, ignore, pause, lists, and the lifetime of a tube."""

from .script import parse_corpus

CONVERSATIONS = parse_corpus(r"""
== use-replies-with-the-name
a> use t
a> list-tube-used
a> use t
a> use default
a> list-tube-used

== use-is-per-connection
a> use t
b> list-tube-used

== watch-counts
a> watch one
a> watch two
a> watch three
a> list-tubes-watched

== watch-twice-is-a-no-op
a> watch one
a> watch one
a> watch default
a> list-tubes-watched
a> ignore one
a> list-tubes-watched

== watch-is-per-connection
a> watch one
b> list-tubes-watched

== ignore-an-unwatched-tube
a> ignore nope
a> watch one
a> ignore nope
a> list-tubes

== ignore-the-last-tube
a> ignore default
a> list-tubes-watched

== ignore-default
a> watch one
a> ignore default
a> ignore one
a> list-tubes-watched

== ignore-a-used-tube-that-is-not-watched
a> use one
a> ignore one
a> list-tube-used

== ignore-then-watch-again
a> watch one
a> watch two
a> ignore default
a> watch default
a> list-tubes-watched

== ignore-the-first-of-several
a> watch one
a> watch two
a> watch three
a> ignore default
a> list-tubes-watched

== ignore-from-the-middle
a> watch one
a> watch two
a> watch three
a> ignore one
a> list-tubes-watched

== watch-many-tubes
a> watch t1
a> watch t2
a> watch t3
a> watch t4
a> watch t5
a> watch t6
a> watch t7
a> watch t8
a> watch t9
a> watch t10
a> watch t11
a> watch t12
a> list-tubes-watched
a> list-tubes

== list-tubes-in-order-of-creation
a> watch zebra
a> watch apple
b> use mango
a> list-tubes
b> list-tubes

== list-tubes-after-a-tube-was-dropped
a> watch one
a> watch two
a> watch three
a> ignore one
a> list-tubes

== list-tubes-with-a-fresh-server
a> list-tubes
a> list-tubes-watched
a> list-tube-used

== tube-is-created-by-use
a> use t
a> stats-tube t
b> list-tubes

== tube-is-created-by-watch
a> watch t
a> stats-tube t

== tube-is-not-created-by-ignore
a> watch one
a> ignore nope
a> stats-tube nope

== tube-is-not-created-by-stats-tube-or-pause
a> stats-tube nope
a> pause-tube nope 0
a> list-tubes

== tube-is-dropped-when-no-longer-used
a> use t
a> use default
a> stats-tube t
a> list-tubes

== tube-is-dropped-when-no-longer-watched
a> watch t
a> ignore t
a> stats-tube t

== tube-exists-while-another-uses-it
a> use t
b> use t
a> use default
a> list-tubes
b> use default
a> list-tubes

== tube-exists-while-it-has-a-ready-job
a> use t
a> put 0 0 60 1\r\nx
a> use default
a> list-tubes
a> delete {1}
a> list-tubes

== tube-exists-while-it-has-a-delayed-job
a> use t
a> put 0 100 60 1\r\nx
a> use default
a> list-tubes
a> delete {1}
a> list-tubes

== tube-exists-while-it-has-a-buried-job
a> use t
a> put 0 0 60 1\r\nx
a> use default
a> reserve-job {1}
a> bury {1} 0
a> list-tubes
a> delete {1}
a> list-tubes

== tube-exists-while-it-has-a-reserved-job
a> use t
a> put 0 0 60 1\r\nx
a> use default
a> reserve-job {1}
a> list-tubes
a> delete {1}
a> list-tubes

== dropped-tube-loses-its-counters
a> use t
a> put 0 0 60 1\r\nx
a> delete {1}
a> stats-tube t
a> use default
a> use t
a> stats-tube t

== paused-tube-that-becomes-empty
a> use t
a> put 0 0 60 1\r\nx
a> pause-tube t 100
a> delete {1}
a> use default
a> pause-tube t 0
a> pause-tube t 100

== pause-of-an-empty-tube
a> use t
a> pause-tube t 100
a> use default
a> watch t
a> use t
a> put 0 0 60 1\r\nx
a> reserve-with-timeout 0

== tube-keeps-its-pause-while-it-exists
a> use t
a> watch t
a> pause-tube t 100
a> use default
a> stats-tube t

== default-is-permanent
a> use t
a> watch t
a> ignore default
a> stats-tube default
a> list-tubes

== default-keeps-its-counters
a> put 0 0 60 1\r\nx
a> delete {1}
a> stats-tube default

== pause-a-tube
a> use t
a> pause-tube t 100
a> stats-tube t

== pause-blocks-reserve-only
a> put 0 0 60 1\r\nx
a> pause-tube default 100
a> reserve-with-timeout 0
a> put 0 0 60 1\r\ny
a> peek-ready
a> delete {1}
a> reserve-job {2}
a> release {2} 0 0
a> reserve-with-timeout 0

== pause-replaces-a-pause
a> pause-tube default 100
a> pause-tube default 200
a> stats-tube default
a> pause-tube default 50
a> stats-tube default

== unpause
a> put 0 0 60 1\r\nx
a> pause-tube default 100
a> reserve-with-timeout 0
a> pause-tube default 0
a> stats-tube default
a> reserve-with-timeout 0

== unpause-an-unpaused-tube
a> pause-tube default 0
a> stats-tube default

== pause-of-the-maximum-length
a> pause-tube default 4294967295
a> stats-tube default
a> put 0 0 60 1\r\nx
a> reserve-with-timeout 0

== pause-counts
a> pause-tube default 0
a> pause-tube default 0
a> pause-tube nope 0
a> pause-tube default x
a> stats-tube default
a> stats

== pause-a-missing-tube
a> pause-tube nope 10
a> list-tubes

== pause-only-the-named-tube
a> use t
a> put 5 0 60 1\r\nx
a> use default
a> put 9 0 60 1\r\ny
a> watch t
a> pause-tube t 100
a> reserve
a> reserve-with-timeout 0

== pause-does-not-stop-a-reserved-job
a> put 0 0 60 1\r\nx
a> reserve
a> pause-tube default 100
a> touch {1}
a> delete {1}

== paused-tube-wakes-its-waiters-when-unpaused
b>> reserve
a> pause-tube default 100
a> put 0 0 60 1\r\nx
b quiet
a> pause-tube default 0
b<

== stats-tube-counts-users-and-watchers
a> use t
b> use t
b> watch t
c> watch t
c>> reserve
a> stats-tube t
c close
a> stats-tube t
b> ignore t
b> use default
a> stats-tube t

== stats-tube-counts-states
a> use t
a> put 0 0 60 1\r\na
a> put 1023 0 60 1\r\nb
a> put 1024 0 60 1\r\nc
a> put 0 100 60 1\r\nd
a> put 0 0 60 1\r\ne
a> put 0 0 60 1\r\nf
a> reserve-job {5}
a> reserve-job {6}
a> bury {6} 0
a> stats-tube t
a> stats

== stats-tube-urgent-follows-release
a> put 0 0 60 1\r\nx
a> stats-tube default
a> reserve
a> stats-tube default
a> release {1} 1024 0
a> stats-tube default
a> reserve
a> release {1} 1023 0
a> stats-tube default

== stats-tube-urgent-is-for-ready-jobs
a> put 0 100 60 1\r\nx
a> stats-tube default
a> kick 1
a> stats-tube default
a> reserve
a> bury {1} 0
a> stats-tube default
a> delete {1}
a> stats-tube default

== stats-tube-cmd-delete-counts-successes
a> put 0 0 60 1\r\nx
a> delete {1}
a> delete {1}
a> stats-tube default
a> stats

== stats-tube-cmd-delete-is-of-the-jobs-tube
a> use t
a> watch t
a> put 0 0 60 1\r\nx
a> use default
a> delete {1}
a> stats-tube t
a> stats-tube default

== stats-tube-total-jobs
a> use t
a> put 0 0 60 1\r\nx
a> put 0 100 60 1\r\nx
a> delete {1}
a> delete {2}
a> stats-tube t

== stats-tube-missing
a> stats-tube nope
a> stats

== stats-tube-after-a-put-that-lacks-its-crlf
a> use t
b> use t
b+ put 0 0 60 1\r\nxyz
b<
b close
a> stats-tube t

== tubes-are-counted
a> use one
a> watch two
a> stats
a> ignore two
a> use default
a> stats
""")
