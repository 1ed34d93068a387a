"""Behaviour that depends on flags or a signal: the maximum job size, the binlog size, and draining."""

from .script import parse_corpus

CONVERSATIONS = parse_corpus(r"""
== size-limit-shows-in-stats -z 100
a> stats

== size-limit-exact -z 100
a> put 0 0 60 100\r\n{x*100}
a> peek {1}

== size-limit-exceeded-by-one -z 100
a> put 0 0 60 101\r\n{x*101}
a> put 0 0 60 1\r\nx

== size-limit-exceeded-with-trailing-garbage -z 100
a> put 0 0 60 101 x\r\n{x*101}
a> list-tube-used

== size-limit-exceeded-then-commands-in-one-chunk -z 100
a+ put 0 0 60 101\r\n{x*101}\r\nlist-tube-used\r\nput 0 0 60 1\r\ny\r\n
a< 3

== size-limit-exceeded-body-in-fragments -z 100
a+ put 0 0 60 200\r\n
a+ {x*100}
a quiet
a+ {x*100}
a quiet
a+ \r
a quiet
a+ \n
a<
a> list-tube-used

== size-limit-exceeded-uses-no-id -z 100
a> put 0 0 60 1\r\nx
a> put 0 0 60 101\r\n{x*101}
a> put 0 0 60 1\r\nx

== size-limit-exceeded-without-crlf -z 100
a+ put 0 0 60 101\r\n{x*101}zzlist-tube-used\r\n
a< 2

== size-limit-exceeded-counts -z 100
a> put 0 0 60 101\r\n{x*101}
a> stats

== size-limit-zero -z 0
a> put 0 0 60 0\r\n
a> put 0 0 60 1\r\nx
a> stats

== size-limit-larger -z 200000
a> put 0 0 60 200000\r\n{x*200000}
a> reserve
a> put 0 0 60 200001\r\n{x*200001}
a> stats

== size-limit-clamped -z 1073741825
a> stats

== binlog-size-shows-in-stats -s 1048576
a> stats

== binlog-size-is-not-rounded-without-a-binlog -s 1000
a> stats

== drain-refuses-put own-server
a> put 0 0 60 1\r\nx
signal SIGUSR1
a> put 0 0 60 1\r\ny
a> stats

== drain-serves-everything-else own-server
a> put 0 0 60 1\r\nx
signal SIGUSR1
a> reserve
a> release {1} 0 0
a> peek {1}
a> reserve
a> bury {1} 0
a> kick 1
a> use t
a> watch t
a> list-tubes
a> delete {1}

== drain-uses-an-id-and-counts own-server
signal SIGUSR1
a> put 0 0 60 1\r\nx
b> put 0 0 60 1\r\ny
a> stats

== drain-reads-the-body-first own-server
signal SIGUSR1
a+ put 0 0 60 5\r\n
a quiet
a> hello
a> list-tube-used

== drain-comes-after-the-crlf-check own-server
signal SIGUSR1
a+ put 0 0 60 5\r\nhelloxy
a<
b> list-tube-used

== drain-comes-after-the-size-check own-server -z 10
signal SIGUSR1
a> put 0 0 60 11\r\n{x*11}
a> put 0 0 60 x
a> put 0 0 60 1 x
a> list-tube-used

== drain-in-the-middle-of-a-body own-server
a+ put 0 0 60 5\r\nhe
signal SIGUSR1
a> llo
a> peek {1}

== drain-is-one-way own-server
signal SIGUSR1
signal SIGUSR1
a> put 0 0 60 1\r\ny
a> stats

== drain-still-serves-new-connections own-server
signal SIGUSR1
b> list-tube-used
b> put 0 0 60 1\r\ny

== drain-does-not-disturb-a-waiter own-server
b>> reserve
signal SIGUSR1
b quiet
a> put 0 0 60 1\r\ny
b quiet

== drain-makes-a-producer own-server
signal SIGUSR1
a> put 0 0 60 1\r\ny
a> stats
""")
