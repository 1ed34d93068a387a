"""Reserve: order, waits, wake-ups, disconnects, and the rules of the safety margin that need no time to pass."""

from .script import parse_corpus

ORDER = parse_corpus(r"""
== ready-jobs-by-priority-then-id
a> put 5 0 60 1\r\na
a> put 1 0 60 1\r\nb
a> put 5 0 60 1\r\nc
a> put 0 0 60 1\r\nd
a> put 4294967295 0 60 1\r\ne
a> put 1 0 60 1\r\nf
a> reserve
a> reserve
a> reserve
a> reserve
a> reserve
a> reserve
a> reserve-with-timeout 0

== several-tubes-smallest-priority-wins
a> use one
a> put 5 0 60 1\r\na
a> use two
a> put 3 0 60 1\r\nb
a> use three
a> put 4 0 60 1\r\nc
b> watch one
b> watch two
b> watch three
b> reserve
b> reserve
b> reserve

== several-tubes-equal-priority-smallest-id-wins
a> use one
a> put 5 0 60 1\r\na
a> use two
a> put 5 0 60 1\r\nb
a> use one
a> put 5 0 60 1\r\nc
b> watch two
b> watch one
b> reserve
b> reserve
b> reserve

== order-of-watching-does-not-matter
a> use two
a> put 5 0 60 1\r\na
a> use one
a> put 5 0 60 1\r\nb
b> watch one
b> watch two
b> reserve
b> reserve

== paused-tubes-are-skipped
a> use one
a> put 1 0 60 1\r\na
a> use two
a> put 5 0 60 1\r\nb
a> pause-tube one 100
b> watch one
b> watch two
b> reserve
b> reserve-with-timeout 0

== unwatched-tubes-are-skipped
a> use t
a> put 0 0 60 1\r\na
a> reserve-with-timeout 0
a> watch t
a> ignore t
a> reserve-with-timeout 0

== disconnect-returns-a-job-to-its-place
a> put 5 0 60 1\r\na
a> put 5 0 60 1\r\nb
b> reserve
b close
a> reserve
a> stats-job {1}

== quit-returns-jobs-in-order
a> put 5 0 60 1\r\na
a> put 5 0 60 1\r\nb
a> put 5 0 60 1\r\nc
b> reserve
b> reserve
b>> quit
b end
a> peek-ready
a> reserve
a> reserve
a> reserve

== disconnect-increments-no-counter
a> put 5 0 60 1\r\na
b> reserve
b close
a> stats-job {1}
a> stats

== disconnect-discards-an-incomplete-release
a> put 5 0 60 1\r\na
b> reserve
b+ release {1} 9 100
b close
a> stats-job {1}

== disconnect-after-a-complete-release
a> put 5 0 60 1\r\na
b> reserve
b> release {1} 9 100
b close
a> stats-job {1}

== disconnect-leaves-buried-jobs-buried
a> put 5 0 60 1\r\na
b> reserve
b> bury {1} 9
b close
a> peek-buried
""")

WAITING = parse_corpus(r"""
== put-wakes-a-waiter
b>> reserve
b quiet
a> put 0 0 60 5\r\nhello
b<
b> stats-job {1}

== put-wakes-a-waiter-with-a-timeout
b>> reserve-with-timeout 100
b quiet
a> put 0 0 60 5\r\nhello
b<

== put-to-an-unwatched-tube-wakes-no-client
b>> reserve
a> use t
a> put 0 0 60 5\r\nhello
b quiet
a> peek-ready

== put-with-delay-wakes-no-client
b>> reserve
a> put 0 100 60 5\r\nhello
b quiet

== put-to-a-paused-tube-wakes-no-client
a> pause-tube default 100
b>> reserve
a> put 0 0 60 5\r\nhello
b quiet
a> peek-ready

== unpausing-wakes-a-waiter
a> pause-tube default 100
a> put 0 0 60 5\r\nhello
b>> reserve
b quiet
a> pause-tube default 0
b<

== unpausing-wakes-as-many-waiters-as-there-are-jobs
a> use t
a> pause-tube t 100
a> put 0 0 60 1\r\na
b> watch t
c> watch t
b>> reserve
c>> reserve
a> pause-tube t 0
a> stats-tube t
b quiet
c quiet

== release-wakes-a-waiter
a> put 0 0 60 5\r\nhello
a> reserve
b>> reserve
a> release {1} 0 0
b<

== bury-wakes-no-client
a> put 0 0 60 5\r\nhello
a> reserve
b>> reserve
a> bury {1} 0
b quiet

== disconnect-wakes-a-waiter
a> put 0 0 60 5\r\nhello
a> reserve
b>> reserve
b quiet
a close
b<
b> stats-job {1}

== disconnect-offers-jobs-in-the-order-they-were-reserved
a> put 5 0 60 1\r\nx
a> reserve
a> put 0 0 60 1\r\ny
a> reserve
b>> reserve
a close
b<
c> reserve

== disconnect-of-a-holder-of-several-jobs-wakes-several
a> use t
b> watch t
c> watch t
a> put 5 0 60 1\r\nx
a> put 5 0 60 1\r\ny
a> reserve-job {1}
a> reserve-job {2}
b>> reserve
c>> reserve
a close
b<
c<

== waiter-on-several-tubes-gets-the-first-job
b> watch one
b> watch two
b>> reserve
a> use two
a> put 9 0 60 1\r\nx
b<
a> use one
a> put 0 0 60 1\r\ny
b quiet
b> reserve

== waiter-leaves-every-tube-when-it-is-served
b> watch one
b> watch two
b>> reserve
a> use two
a> put 9 0 60 1\r\nx
b<
a> stats-tube two
a> stats-tube default
a> stats

== waiters-first-come-first-served
# A new tube: in beanstalkd the next connection depends on all earlier waits on the tube.
a> use t
b> watch t
c> watch t
d> watch t
e> watch t
b>> reserve
c>> reserve
d>> reserve
e>> reserve
a> put 0 0 60 1\r\nx
a> put 0 0 60 1\r\ny
a> put 0 0 60 1\r\nz
b quiet
c quiet
d quiet
e quiet

== waiters-first-come-first-served-after-a-disconnect
a> use t
b> watch t
c> watch t
d> watch t
e> watch t
b>> reserve
c>> reserve
d>> reserve
e>> reserve
b close
a> put 0 0 60 1\r\nx
a> put 0 0 60 1\r\ny
c quiet
d quiet
e quiet

== waiters-queue-again-behind-the-others
a> use t
b> watch t
c> watch t
b>> reserve
c>> reserve
a> put 0 0 60 1\r\nx
b<
b>> reserve
a> put 0 0 60 1\r\ny
c quiet
b quiet

== two-waiters-one-job
a> use t
b> watch t
c> watch t
b>> reserve
c>> reserve
a> put 0 0 60 1\r\nx
a> stats
a> stats-tube t
b quiet
c quiet

== waiter-is-counted
b>> reserve
a> stats
a> stats-tube default

== waiter-with-many-tubes-is-counted-once
b> watch one
b> watch two
b>> reserve
a> stats
a> stats-tube one

== disconnected-waiter-is-not-counted
b>> reserve
b close
a> stats
a> stats-tube default

== disconnected-waiter-gets-no-job
b>> reserve
b close
a> put 0 0 60 1\r\nx
a> peek-ready
a> reserve

== commands-after-a-waiting-reserve-wait
b+ reserve\r\nlist-tube-used\r\nuse t\r\n
b quiet
a> put 0 0 60 1\r\nx
b< 3

== commands-sent-while-waiting-wait
b>> reserve
b>> list-tube-used
b quiet
a> put 0 0 60 1\r\nx
b< 2

== two-reserves-in-one-chunk
b+ reserve\r\nreserve\r\n
a> put 0 0 60 1\r\nx
b<
b quiet
a> put 0 0 60 1\r\ny
b<

== put-after-a-waiting-reserve-waits
b+ reserve\r\nput 0 0 60 1\r\nx\r\n
b quiet
a> put 0 0 60 1\r\nx
b< 2

== put-and-reserve-on-one-connection
a> put 0 0 60 1\r\nx
a> reserve
a> put 0 0 60 1\r\ny
a> reserve

== quit-after-a-waiting-reserve-waits
b+ reserve\r\nquit\r\n
b quiet
a> put 0 0 60 1\r\nx
b<
b end
a> stats-job {1}

== reserve-with-timeout-zero-takes-a-ready-job
a> put 0 0 60 1\r\nx
a> reserve-with-timeout 0
a> reserve-with-timeout 0

== large-body-to-a-waiter
b>> reserve
a> put 0 0 60 65535\r\n{0123456789abcde*4369}
b<

== many-large-bodies-without-reading
a> put 0 0 60 60000\r\n{a*60000}
a> put 0 0 60 60000\r\n{b*60000}
a> put 0 0 60 60000\r\n{c*60000}
a> put 0 0 60 60000\r\n{d*60000}
a> put 0 0 60 60000\r\n{e*60000}
b+ reserve\r\nreserve\r\nreserve\r\nreserve\r\nreserve\r\n
b< 5

== same-job-peeked-many-times-without-reading
a> put 0 0 60 60000\r\n{a*60000}
a+ peek {1}\r\npeek {1}\r\npeek {1}\r\npeek {1}\r\npeek {1}\r\npeek {1}\r\npeek {1}\r\npeek {1}\r\n
a< 8
""")

ENDS = parse_corpus(r"""
== half-close-while-waiting
b>> reserve
b half-close
b end
a> stats

== half-close-while-waiting-with-a-timeout
b>> reserve-with-timeout 100
b half-close
b end

== half-close-while-waiting-then-commands-already-sent
b+ reserve\r\nlist-tube-used\r\nput 0 0 60 1\r\nx\r\n
b half-close
b end
a> peek-ready

== half-close-while-waiting-then-another-reserve
b+ reserve\r\nreserve\r\nlist-tube-used\r\n
b half-close
b end

== half-close-while-waiting-then-quit
b+ reserve\r\nquit\r\nlist-tube-used\r\n
b half-close
b end

== half-close-while-waiting-then-half-a-command
b+ reserve\r\nlist-tube
b half-close
b end

== half-close-then-reserve-with-a-ready-job
a> put 0 0 60 1\r\nx
b+ reserve\r\nlist-tube-used\r\n
b half-close
b end
a> stats-job {1}

== half-close-idle
b> list-tube-used
b half-close
b end

== half-close-before-anything
b open
b half-close
b end

== half-close-after-pipelined-commands
b+ list-tube-used\r\nuse t\r\nlist-tube-used\r\n
b half-close
b end

== half-close-releases-reserved-jobs
a> put 0 0 60 1\r\nx
b> reserve
b half-close
b end
a> stats-job {1}

== half-close-with-a-reserved-job-while-waiting
a> put 0 0 60 1\r\nx
b> reserve
b>> reserve
b half-close
b end
a> stats-job {1}

== half-close-of-a-waiter-passes-the-job-to-the-next
a> put 0 0 60 1\r\nx
b> reserve
c>> reserve
b half-close
b end
c<

== close-with-unread-replies
b+ list-tube-used\r\nlist-tube-used\r\n
b close
a> list-tube-used
a> stats

== close-of-a-user-removes-its-tube
b> use t
a> list-tubes
b close
a> list-tubes

== close-of-a-watcher-removes-its-tube
b> watch t
a> list-tubes
b close
a> list-tubes

== close-of-a-waiter-removes-its-tube
b> watch t
b>> reserve
b close
a> list-tubes
a> stats-tube t

== connections-are-counted
a> stats
b open
c open
a> stats
b close
a> stats

== producers-are-counted-while-connected
b> put 0 0 60 1\r\nx
a> stats
b close
a> stats

== workers-are-counted-while-connected
b> reserve-with-timeout 0
a> stats
b close
a> stats

== worker-and-producer-in-one
b> put 0 0 60 1\r\nx
b> reserve
a> stats

== producer-by-a-put-whose-body-is-incomplete
b+ put 0 0 60 1\r\nx
a> stats

== worker-by-deadline-soon
b> put 0 0 1 1\r\nx
b> reserve-job {1}
b> reserve
a> stats

== worker-by-a-refused-reserve
b> reserve 0
b> reserve-with-timeout
a> stats
""")

SAFETY_MARGIN = parse_corpus(r"""
== deadline-soon-with-ttr-one
a> put 0 0 1 1\r\nx
a> reserve
a> reserve
a> reserve-with-timeout 0
a> reserve-with-timeout 10

== deadline-soon-even-with-timeout-zero
a> put 0 0 1 1\r\nx
a> reserve
a> reserve-with-timeout 0

== ready-job-precedes-deadline-soon
a> put 0 0 1 1\r\nx
a> reserve
a> put 0 0 60 1\r\ny
a> reserve
a> reserve-with-timeout 0

== deadline-soon-with-only-a-paused-tube-ready
a> put 0 0 1 1\r\nx
a> reserve
a> put 0 0 60 1\r\ny
a> pause-tube default 100
a> reserve-with-timeout 0
a> reserve

== deadline-soon-with-a-paused-and-an-unpaused-tube
a> put 0 0 1 1\r\nx
a> reserve
a> put 0 0 60 1\r\ny
a> use t
a> put 9 0 60 1\r\nz
a> pause-tube default 100
a> watch t
a> reserve-with-timeout 0
a> reserve-with-timeout 0

== deadline-soon-ends-with-delete
a> put 0 0 1 1\r\nx
a> reserve
a> reserve-with-timeout 0
a> delete {1}
a> reserve-with-timeout 0

== deadline-soon-ends-with-release
a> put 0 0 1 1\r\nx
a> reserve
a> release {1} 0 100
a> reserve-with-timeout 0

== deadline-soon-ends-with-bury
a> put 0 0 1 1\r\nx
a> reserve
a> bury {1} 0
a> reserve-with-timeout 0

== deadline-soon-does-not-end-with-touch
a> put 0 0 1 1\r\nx
a> reserve
a> touch {1}
a> reserve-with-timeout 0

== deadline-soon-is-not-for-others
a> put 0 0 1 1\r\nx
a> reserve
b> reserve-with-timeout 0

== deadline-soon-for-one-of-several-jobs
a> put 0 0 60 1\r\nx
a> put 0 0 1 1\r\ny
a> reserve
a> reserve-with-timeout 0
a> reserve-with-timeout 0

== deadline-soon-counts-as-a-reserve
a> put 0 0 1 1\r\nx
a> reserve
a> reserve
a> reserve-with-timeout 0
a> stats

== deadline-soon-by-reserve-job
a> put 0 0 1 1\r\nx
a> reserve-job {1}
a> reserve-with-timeout 0

== no-deadline-soon-with-ttr-three
a> put 0 0 3 1\r\nx
a> reserve
a> reserve-with-timeout 0
""")

CONVERSATIONS = [*ORDER, *WAITING, *ENDS, *SAFETY_MARGIN]
