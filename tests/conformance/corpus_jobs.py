"""The commands on jobs: put, reserve, release, bury, kick, touch, delete and peek, by state and holder."""

from .script import parse_corpus

LIFE = parse_corpus(r"""
== put-then-reserve-then-delete
a> put 0 0 60 5\r\nhello
b> reserve
b> delete {1}
b> delete {1}
a> peek {1}

== put-with-delay
a> put 0 100 60 5\r\nhello
a> stats-job {1}
a> reserve-with-timeout 0
a> peek-delayed
a> peek-ready

== put-into-the-used-tube
a> use t
a> put 0 0 60 1\r\nx
a> stats-job {1}
a> stats-tube t
a> reserve-with-timeout 0
a> watch t
a> reserve-with-timeout 0

== put-keeps-its-tube-when-another-is-used
a> use one
a> put 0 0 60 1\r\nx
a> use two
a> put 0 0 60 1\r\nx
a> stats-job {1}
a> stats-job {2}
a> list-tubes

== reserve-changes-the-stats-of-a-job
a> put 5 0 60 1\r\nx
a> stats-job {1}
a> reserve
a> stats-job {1}

== release-changes-the-stats-of-a-job
a> put 5 0 60 1\r\nx
a> reserve
a> release {1} 9 0
a> stats-job {1}
a> reserve
a> release {1} 10 100
a> stats-job {1}

== release-with-zero-delay-after-a-delayed-put
a> put 5 100 60 1\r\nx
a> kick 1
a> stats-job {1}
a> reserve
a> stats-job {1}
a> release {1} 5 0
a> stats-job {1}

== release-with-delay-then-delete
a> put 5 0 60 1\r\nx
a> reserve
a> release {1} 5 100
a> peek-delayed
a> delete {1}
a> peek-delayed

== released-job-returns-to-its-place
a> put 5 0 60 1\r\na
a> put 5 0 60 1\r\nb
a> put 5 0 60 1\r\nc
a> reserve
a> release {1} 5 0
a> peek-ready
a> reserve

== release-at-another-priority-reorders
a> put 5 0 60 1\r\na
a> put 5 0 60 1\r\nb
a> reserve
a> release {1} 6 0
a> reserve
a> reserve

== release-twice
a> put 0 0 60 1\r\nx
a> reserve
a> release {1} 0 0
a> release {1} 0 0

== release-a-ready-job
a> put 0 0 60 1\r\nx
a> release {1} 0 0
a> stats-job {1}

== release-a-delayed-job
a> put 0 100 60 1\r\nx
a> release {1} 0 0
a> stats-job {1}

== release-a-buried-job
a> put 0 0 60 1\r\nx
a> reserve
a> bury {1} 0
a> release {1} 0 0
a> stats-job {1}

== release-of-another-connection
a> put 0 0 60 1\r\nx
a> reserve
b> release {1} 0 0
a> stats-job {1}
a> release {1} 0 0

== release-of-a-missing-job
a> release {1} 0 0
a> release 0 0 0
a> release 18446744073709551615 0 0

== bury-changes-the-stats-of-a-job
a> put 5 0 60 1\r\nx
a> reserve
a> bury {1} 9
a> stats-job {1}
a> peek-buried

== bury-keeps-delay-and-ttr
a> put 5 100 60 1\r\nx
a> kick 1
a> reserve
a> bury {1} 5
a> stats-job {1}

== bury-twice
a> put 5 0 60 1\r\nx
a> reserve
a> bury {1} 9
a> bury {1} 9

== bury-a-ready-job
a> put 5 0 60 1\r\nx
a> bury {1} 9
a> stats-job {1}

== bury-a-delayed-job
a> put 5 100 60 1\r\nx
a> bury {1} 9
a> stats-job {1}

== bury-of-another-connection
a> put 5 0 60 1\r\nx
a> reserve
b> bury {1} 9
a> stats-job {1}

== bury-of-a-missing-job
a> bury {1} 0
a> bury 0 0

== touch-a-reserved-job
a> put 0 0 60 1\r\nx
a> reserve
a> touch {1}
a> touch {1}
a> stats-job {1}

== touch-a-ready-job
a> put 0 0 60 1\r\nx
a> touch {1}

== touch-a-delayed-job
a> put 0 100 60 1\r\nx
a> touch {1}

== touch-a-buried-job
a> put 0 0 60 1\r\nx
a> reserve
a> bury {1} 0
a> touch {1}

== touch-of-another-connection
a> put 0 0 60 1\r\nx
a> reserve
b> touch {1}

== touch-of-a-missing-job
a> touch {1}
a> touch 0

== delete-a-ready-job-of-another-connection
a> put 0 0 60 1\r\nx
b> delete {1}
a> reserve-with-timeout 0

== delete-a-delayed-job-of-another-connection
a> put 0 100 60 1\r\nx
b> delete {1}
a> peek-delayed

== delete-a-buried-job-of-another-connection
a> put 0 0 60 1\r\nx
a> reserve
a> bury {1} 0
b> delete {1}
a> peek-buried

== delete-a-reserved-job-of-another-connection
a> put 0 0 60 1\r\nx
a> reserve
b> delete {1}
a> delete {1}

== delete-a-job-of-an-unwatched-tube
a> use t
a> put 0 0 60 1\r\nx
b> delete {1}
b> list-tubes

== delete-of-a-missing-job
a> delete {1}
a> delete 0
a> delete 18446744073709551615

== deleted-job-is-gone-for-every-command
a> put 0 0 60 1\r\nx
a> reserve
a> delete {1}
a> delete {1}
a> release {1} 0 0
a> bury {1} 0
a> touch {1}
a> kick-job {1}
a> reserve-job {1}
a> peek {1}
a> stats-job {1}

== reserve-again-after-release-keeps-counting
a> put 0 0 60 1\r\nx
a> reserve
a> release {1} 0 0
a> reserve
a> release {1} 0 0
a> reserve
a> bury {1} 0
a> kick 1
a> reserve
a> bury {1} 0
a> kick-job {1}
a> stats-job {1}

== ids-increase-and-are-never-reused
a> put 0 0 60 1\r\nx
a> delete {1}
a> put 0 0 60 1\r\nx
a> put 0 0 60 1\r\nx
a> delete {3}
a> put 0 0 60 1\r\nx
""")

PEEKING = parse_corpus(r"""
== peek-a-job-in-each-state
a> put 0 0 60 5\r\nready
a> put 0 100 60 7\r\ndelayed
a> put 0 0 60 8\r\nreserved
a> put 0 0 60 6\r\nburied
a> reserve-job {3}
a> reserve-job {4}
a> bury {4} 0
b> peek {1}
b> peek {2}
b> peek {3}
b> peek {4}

== peek-a-job-of-any-tube
a> use t
a> put 0 0 60 1\r\nx
b> peek {1}

== peek-a-missing-job
a> peek {1}
a> peek 0
a> peek 18446744073709551615

== peek-ready-empty
a> peek-ready
a> peek-delayed
a> peek-buried

== peek-ready-shows-the-most-urgent
a> put 5 0 60 1\r\na
a> put 3 0 60 1\r\nb
a> put 4 0 60 1\r\nc
a> peek-ready
a> peek-ready

== peek-ready-looks-at-the-used-tube
a> put 0 0 60 1\r\na
a> use t
a> peek-ready
a> put 0 0 60 1\r\nb
a> peek-ready
a> watch default
a> peek-ready

== peek-delayed-shows-the-soonest
a> put 0 300 60 1\r\na
a> put 9 100 60 1\r\nb
a> put 0 200 60 1\r\nc
a> peek-delayed

== peek-delayed-looks-at-the-used-tube
a> put 0 100 60 1\r\na
a> use t
a> peek-delayed
a> put 0 100 60 1\r\nb
a> peek-delayed

== peek-buried-shows-the-first-buried
a> put 5 0 60 1\r\na
a> put 5 0 60 1\r\nb
a> put 5 0 60 1\r\nc
a> reserve
a> reserve
a> reserve
a> bury {2} 9
a> bury {3} 1
a> bury {1} 0
a> peek-buried
a> delete {2}
a> peek-buried
a> delete {3}
a> peek-buried

== peek-buried-looks-at-the-used-tube
a> put 0 0 60 1\r\na
a> reserve
a> bury {1} 0
a> use t
a> peek-buried
a> use default
a> peek-buried

== peek-does-not-change-a-job
a> put 0 0 60 1\r\nx
a> peek {1}
a> peek-ready
a> stats-job {1}
a> reserve

== peek-counters
a> peek {1}
a> peek-ready
a> peek-delayed
a> peek-buried
a> peek x
a> peek-readyx
a> stats

== peek-in-a-paused-tube
a> put 0 0 60 1\r\nx
a> pause-tube default 100
a> peek-ready
a> peek {1}
""")

KICKING = parse_corpus(r"""
== kick-with-nothing-to-kick
a> kick 10
a> put 0 0 60 1\r\nx
a> kick 10
a> reserve
a> kick 10

== kick-buried-in-order-of-burial
a> put 0 0 60 1\r\na
a> put 0 0 60 1\r\nb
a> put 0 0 60 1\r\nc
a> reserve
a> reserve
a> reserve
a> bury {3} 0
a> bury {1} 0
a> bury {2} 0
a> kick 1
a> peek-ready
a> peek-buried
a> kick 2
a> peek-buried
a> peek-ready

== kick-fewer-than-there-are
a> put 0 100 60 1\r\na
a> put 0 100 60 1\r\nb
a> put 0 100 60 1\r\nc
a> kick 2
a> stats-tube default

== kick-more-than-there-are
a> put 0 100 60 1\r\na
a> put 0 100 60 1\r\nb
a> kick 100
a> stats-tube default

== kick-delayed-in-order-of-deadline
a> put 0 300 60 1\r\na
a> put 0 100 60 1\r\nb
a> put 0 200 60 1\r\nc
a> kick 1
a> stats-job {2}
a> kick 1
a> stats-job {3}
a> stats-job {1}

== kick-prefers-buried-to-delayed
a> put 0 0 60 1\r\na
a> put 0 100 60 1\r\nb
a> reserve
a> bury {1} 0
a> kick 10
a> stats-job {1}
a> stats-job {2}
a> kick 10
a> stats-job {2}

== kick-looks-at-the-used-tube
a> put 0 100 60 1\r\na
a> use t
a> put 0 100 60 1\r\nb
a> kick 10
a> stats-job {1}
a> stats-job {2}

== kick-zero-of-buried
a> put 0 0 60 1\r\na
a> reserve
a> bury {1} 0
a> kick 0
a> peek-buried

== kick-sets-the-stats-of-a-job
a> put 5 100 60 1\r\na
a> kick 1
a> stats-job {1}
a> reserve
a> bury {1} 7
a> kick 1
a> stats-job {1}

== kicked-job-returns-to-its-place
a> put 5 0 60 1\r\na
a> put 5 0 60 1\r\nb
a> reserve
a> bury {1} 5
a> kick 1
a> reserve

== kick-wakes-a-waiter
a> put 0 100 60 1\r\nx
b>> reserve
b quiet
a> kick 1
b<

== kick-job-buried
a> put 0 0 60 1\r\na
a> reserve
a> bury {1} 0
a> kick-job {1}
a> stats-job {1}

== kick-job-delayed
a> put 0 100 60 1\r\na
a> kick-job {1}
a> stats-job {1}

== kick-job-ready
a> put 0 0 60 1\r\na
a> kick-job {1}
a> stats-job {1}

== kick-job-reserved
a> put 0 0 60 1\r\na
a> reserve
a> kick-job {1}
b> kick-job {1}

== kick-job-missing
a> kick-job {1}
a> kick-job 0
a> kick-job 18446744073709551615

== kick-job-of-another-tube
a> use t
a> put 0 100 60 1\r\na
b> kick-job {1}
b> stats-job {1}

== kick-job-leaves-other-buried-jobs
a> put 0 0 60 1\r\na
a> put 0 0 60 1\r\nb
a> put 0 0 60 1\r\nc
a> reserve
a> reserve
a> reserve
a> bury {1} 0
a> bury {2} 0
a> bury {3} 0
a> kick-job {2}
a> peek-buried
a> kick 1
a> peek-buried
a> stats-tube default

== kick-job-wakes-a-waiter
a> put 0 100 60 1\r\nx
b>> reserve
a> kick-job {1}
b<

== kick-counters
a> kick 0
a> kick 5
a> kick x
a> kick-job {1}
a> stats

== kick-in-a-paused-tube
a> put 0 100 60 1\r\nx
a> pause-tube default 100
a> kick 1
a> stats-job {1}
a> reserve-with-timeout 0
""")

RESERVE_JOB = parse_corpus(r"""
== reserve-job-ready
a> put 0 0 60 5\r\nhello
b> reserve-job {1}
b> stats-job {1}
b> delete {1}

== reserve-job-delayed
a> put 0 100 60 5\r\nhello
b> reserve-job {1}
b> stats-job {1}
b> release {1} 0 0
b> stats-job {1}

== reserve-job-buried
a> put 0 0 60 5\r\nhello
a> reserve
a> bury {1} 0
b> reserve-job {1}
b> stats-job {1}
a> peek-buried

== reserve-job-reserved-by-itself
a> put 0 0 60 5\r\nhello
a> reserve-job {1}
a> reserve-job {1}

== reserve-job-reserved-by-another
a> put 0 0 60 5\r\nhello
a> reserve
b> reserve-job {1}

== reserve-job-missing
a> reserve-job {1}
a> reserve-job 0
a> reserve-job 18446744073709551615

== reserve-job-of-an-unwatched-tube
a> use t
a> put 0 0 60 5\r\nhello
b> reserve-job {1}
b> list-tubes-watched

== reserve-job-of-a-paused-tube
a> put 0 0 60 5\r\nhello
a> pause-tube default 100
a> reserve-job {1}

== reserve-job-makes-a-worker-only-if-it-succeeds
a> reserve-job {1}
a> stats
a> put 0 0 60 1\r\nx
a> reserve-job {1}
a> stats

== reserve-job-out-of-the-middle-of-the-ready-queue
a> put 5 0 60 1\r\na
a> put 5 0 60 1\r\nb
a> put 5 0 60 1\r\nc
a> reserve-job {2}
a> release {2} 1 0
a> reserve
a> reserve
a> reserve

== reserve-job-then-release-with-delay-then-kick
a> put 5 0 60 1\r\na
a> reserve-job {1}
a> release {1} 9 100
a> peek-delayed
a> kick 1
a> peek-ready
a> stats-job {1}

== reserve-job-inside-the-safety-margin
a> put 0 0 1 1\r\na
a> put 0 0 60 1\r\nb
a> reserve-job {1}
a> reserve-job {2}
a> stats-job {2}

== reserve-job-keeps-the-delay
a> put 0 100 60 1\r\na
a> reserve-job {1}
a> stats-job {1}
a> bury {1} 0
a> stats-job {1}

== reserve-job-is-not-counted
a> put 0 0 60 1\r\na
a> reserve-job {1}
a> reserve-job {1}
a> stats
""")

CONVERSATIONS = [*LIFE, *PEEKING, *KICKING, *RESERVE_JOB]
