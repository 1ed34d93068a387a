"""Behaviour over time: TTR, delay, pause, timeouts, the safety margin. Elapsed times are compared too.

Replies show seconds rounded down, so they are requested about half a second away from a change.

After a TTR has expired, the holder sends a command before the result is checked: beanstalkd misses an expiry that it
checks in the microsecond of the deadline, until the holder's next command (see differences.py).
"""

from .script import parse_corpus

CONVERSATIONS = parse_corpus(r"""
== reserve-times-out timed
a> reserve-with-timeout 1

== reserve-times-out-after-two-seconds timed
a> reserve-with-timeout 2
a> stats

== reserve-times-out-then-pipelined-commands timed
a+ reserve-with-timeout 1\r\nlist-tube-used\r\nreserve-with-timeout 1\r\n
a< 3

== reserve-times-out-for-several-waiters timed
b>> reserve-with-timeout 2
c>> reserve-with-timeout 1
d>> reserve-with-timeout 3
c<
b<
d<

== reserve-served-before-it-times-out timed
b>> reserve-with-timeout 3
wait 1.0
a> put 0 0 60 1\r\nx
b<
a> reserve-with-timeout 1

== waiter-that-timed-out-is-not-counted timed
a> reserve-with-timeout 1
a> stats
a> stats-tube default
b> put 0 0 60 1\r\nx
a quiet

== delayed-put-becomes-ready timed
a> put 0 1 60 1\r\nx
a> stats-job {1}
a> reserve
a> stats-job {1}

== delayed-put-becomes-ready-unobserved timed
a> put 0 1 60 1\r\nx
wait 1.5
a> stats-job {1}
a> peek-ready
a> peek-delayed
a> stats-tube default

== delayed-put-counts-down timed
a> put 0 4 60 1\r\nx
wait 0.5
a> stats-job {1}
wait 1.0
a> stats-job {1}
wait 1.0
a> stats-job {1}

== delayed-jobs-become-ready-in-order timed
a> put 0 2 60 1\r\na
a> put 0 1 60 1\r\nb
b> reserve
b> reserve

== delayed-job-does-not-interrupt-a-timeout timed
b>> reserve-with-timeout 1
a> put 0 2 60 1\r\nx
b<
b> reserve-with-timeout 3

== delayed-jobs-due-together-by-priority timed
a> put 9 1 60 1\r\na
a> put 1 1 60 1\r\nb
wait 1.5
a> reserve
a> reserve

== delayed-job-of-a-paused-tube timed
a> put 0 1 60 1\r\nx
a> pause-tube default 2
a> reserve-with-timeout 4
a> stats-job {1}

== tube-with-a-delayed-job-exists timed
a> use t
a> put 0 1 60 1\r\nx
a> use default
wait 1.5
a> list-tubes
a> stats-tube t

== release-with-delay timed
a> put 0 0 60 1\r\nx
a> reserve
a> release {1} 0 1
a> reserve
a> stats-job {1}

== kicked-delayed-job-stays-ready timed
a> put 0 1 60 1\r\nx
a> kick 1
a> reserve
wait 1.5
a> stats-job {1}
a> stats

== deleted-delayed-job-does-not-become-ready timed
a> put 0 1 60 1\r\nx
a> delete {1}
a> reserve-with-timeout 2

== ttr-expires timed
a> put 0 0 2 1\r\nx
a> reserve
wait 2.5
a> list-tube-used
a> stats-job {1}
a> stats
a> delete {1}

== ttr-expires-and-a-waiter-gets-the-job timed
a> put 0 0 2 1\r\nx
a> reserve
b>> reserve
wait 2.2
a> list-tube-used
b<
b> stats-job {1}
a> delete {1}
a> release {1} 0 0
a> bury {1} 0
a> touch {1}

== ttr-expires-while-another-client-waits timed
a> put 0 0 2 1\r\nx
a> reserve
b>> reserve
wait 1.7
b quiet
wait 0.6
b quiet

== ttr-counts-down timed
a> put 0 0 4 1\r\nx
a> reserve
wait 0.5
a> stats-job {1}
wait 1.0
a> stats-job {1}
wait 1.0
a> stats-job {1}

== ttr-of-several-jobs timed
a> put 0 0 1 1\r\nx
a> put 0 0 3 1\r\ny
a> reserve
a> reserve
wait 1.5
a> list-tube-used
a> stats-job {1}
a> stats-job {2}
wait 2.0
a> list-tube-used
a> stats-job {2}
a> stats

== ttr-expires-for-the-soonest-first timed
a> put 0 0 3 1\r\nx
a> put 0 0 1 1\r\ny
a> reserve
a> reserve
b>> reserve
wait 1.3
a> list-tube-used
b<
b>> reserve
wait 0.3
b quiet

== ttr-is-one-when-zero timed
a> put 0 0 0 1\r\nx
a> reserve
b>> reserve
wait 0.6
b quiet
wait 0.6
a> list-tube-used
b<

== ttr-expires-twice timed
a> put 0 0 1 1\r\nx
a> reserve
wait 1.5
a> list-tube-used
a> reserve
wait 1.5
a> list-tube-used
a> stats-job {1}
a> stats

== expired-job-returns-to-its-place timed
a> put 5 0 1 1\r\nx
a> put 5 0 60 1\r\ny
a> reserve
wait 1.5
a> list-tube-used
a> reserve

== ttr-does-not-elapse-while-ready timed
a> put 0 0 1 1\r\nx
wait 1.5
a> stats-job {1}

== ttr-keeps-the-delay timed
a> put 0 100 1 1\r\nx
a> kick 1
a> reserve
wait 1.5
a> list-tube-used
a> stats-job {1}

== ttr-of-a-paused-tube timed
a> put 0 0 1 1\r\nx
a> reserve
a> pause-tube default 2
b>> reserve
wait 1.5
a> list-tube-used
a> stats-job {1}
b quiet
b<

== ttr-ends-with-release timed
a> put 0 0 1 1\r\nx
a> reserve
a> release {1} 0 0
wait 1.5
a> stats-job {1}
a> stats

== ttr-ends-with-bury timed
a> put 0 0 1 1\r\nx
a> reserve
a> bury {1} 0
wait 1.5
a> stats-job {1}

== ttr-ends-with-disconnect timed
a> put 0 0 1 1\r\nx
b> reserve
b close
wait 1.5
a> stats-job {1}
a> stats

== ttr-restarts-with-each-reserve timed
a> put 0 0 3 1\r\nx
a> reserve
wait 1.5
a> release {1} 0 0
a> reserve
a> stats-job {1}

== ttr-of-a-job-reserved-by-id timed
a> put 0 0 2 1\r\nx
a> reserve-job {1}
wait 2.5
a> list-tube-used
a> stats-job {1}

== touch-moves-the-deadline timed
a> put 0 0 3 1\r\nx
a> reserve
wait 1.5
a> stats-job {1}
a> touch {1}
a> stats-job {1}
wait 2.5
a> list-tube-used
a> stats-job {1}

== touch-restarts-the-ttr timed
a> put 0 0 3 1\r\nx
a> reserve
a> touch {1}
a> touch {1}
a> touch {1}
a> stats-job {1}

== touch-after-the-ttr-expired timed
a> put 0 0 1 1\r\nx
a> reserve
wait 1.5
a> list-tube-used
a> touch {1}

== touch-ends-the-safety-margin timed
a> put 0 0 2 1\r\nx
a> reserve
wait 1.3
a> reserve-with-timeout 0
a> touch {1}
a> reserve-with-timeout 0

== deadline-soon-while-waiting timed
a> put 0 0 3 1\r\nx
a> reserve
a> reserve

== deadline-soon-while-waiting-with-a-timeout timed
a> put 0 0 3 1\r\nx
a> reserve
a> reserve-with-timeout 10
a> reserve-with-timeout 10
a> reserve-with-timeout 1

== deadline-soon-after-a-shorter-timeout timed
a> put 0 0 3 1\r\nx
a> reserve
a> reserve-with-timeout 1
a> reserve-with-timeout 5

== deadline-soon-for-the-soonest-of-several timed
a> put 0 0 9 1\r\nx
a> put 0 0 2 1\r\ny
a> reserve
a> reserve
a> reserve

== deadline-soon-repeats-until-the-job-expires timed
a> put 0 0 2 1\r\nx
a> reserve
a> reserve
a> reserve
wait 1.3
a> list-tube-used
a> reserve

== deadline-soon-counts-as-a-command timed
a> put 0 0 2 1\r\nx
a> reserve
a> reserve
a> stats
a> stats-tube default

== deadline-soon-then-pipelined-commands timed
a> put 0 0 2 1\r\nx
a> reserve
a+ reserve\r\nlist-tube-used\r\n
a< 2

== deadline-soon-with-a-ready-job-inside-the-margin timed
a> put 0 0 2 1\r\nx
a> reserve
wait 1.3
a> put 0 0 60 1\r\ny
a> reserve
a> reserve-with-timeout 0

== deadline-soon-is-not-sent-before-the-margin timed
a> put 0 0 3 1\r\nx
a> reserve
wait 1.0
a> reserve-with-timeout 0
wait 1.5
a> reserve-with-timeout 0

== deadline-soon-does-not-affect-other-waiters timed
a> put 0 0 2 1\r\nx
a> reserve
b>> reserve
a> reserve
b quiet
wait 1.3
a> list-tube-used
b<

== pause-ends timed
a> put 0 0 60 1\r\nx
a> pause-tube default 1
a> reserve
a> stats-tube default

== pause-ends-unobserved timed
a> put 0 0 60 1\r\nx
a> pause-tube default 1
wait 1.5
a> stats-tube default
a> reserve-with-timeout 0

== pause-counts-down timed
a> pause-tube default 4
wait 0.5
a> stats-tube default
wait 1.0
a> stats-tube default
wait 1.0
a> stats-tube default

== pause-shortened timed
a> put 0 0 60 1\r\nx
a> pause-tube default 100
b>> reserve
a> pause-tube default 1
b<

== pause-lengthened timed
a> put 0 0 60 1\r\nx
a> pause-tube default 1
b>> reserve
a> pause-tube default 2
b<

== pause-and-a-timeout timed
a> put 0 0 60 1\r\nx
a> pause-tube default 3
a> reserve-with-timeout 1

== pause-of-one-tube-of-two timed
a> use one
a> put 1 0 60 1\r\nx
a> pause-tube one 1
a> watch one
a> watch two
b> use two
b> put 9 0 60 1\r\ny
a> reserve
a> reserve

== pause-ends-for-every-waiter timed
a> use t
a> pause-tube t 1
a> put 0 0 60 1\r\nx
a> put 0 0 60 1\r\ny
b> watch t
c> watch t
b>> reserve
c>> reserve
b<
c<

== age-of-a-job timed
a> put 0 0 60 1\r\nx
wait 1.5
a> stats-job {1}
a> reserve
a> release {1} 0 0
wait 1.0
a> stats-job {1}

== half-close-before-the-timeout timed
b>> reserve-with-timeout 3
b half-close
b end

== half-close-of-a-holder-releases-its-job-immediately timed
a> put 0 0 60 1\r\nx
b> reserve
c>> reserve
wait 0.5
b half-close
c<

== idle-connection-stays-open timed
a> list-tube-used
wait 2.0
a quiet
a> list-tube-used
""")
