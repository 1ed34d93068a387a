"""Commands that beanstalkd does not have, and fractions of seconds: beanstalkd refuses both.

Every conversation here has an entry in differences.py. `--strict-protocol` makes the replies equal.
"""

from .script import parse_corpus

CONVERSATIONS = parse_corpus(r"""
== extension-put-in-tube
a> put-in-tube t 0 0 60 4\r\nstat
a> list-tube-used
a> use t
a> peek-ready

== extension-put-with-a-bad-tag
a> put 0 0 60 5 idp:\r\nuse t
a> put 0 0 60 5 idp:{k*300}\r\nuse t
a> put 0 0 60 5 grp:{g*2000}\r\nuse t
a> put-in-tube {t*201} 0 0 60 5\r\nuse t
a> put-in-tube {t*200} 0 0 60 1 idp:{k*200} grp:{g*200}\r\nx
a> peek {1}
a> put-in-tube {t*2000} 0 0 60 5\r\nuse t
a<

== extension-reserve-batch
a> put 0 0 60 1\r\nx
a> put 0 0 60 1\r\ny
a> reserve-batch 5
a< 2
a> reserve-batch 5
a> reserve-batch 0
a> reserve-batch

== extension-delete-batch
a> put 0 0 60 1\r\nx
a> delete-batch {1} 18446744073709551615
a> delete-batch
a> delete-batch x
a> list-tube-used

== extension-delete-batch-line-of-more-than-224-bytes
a> delete-batch{ 18446744073709551615*20}
a> list-tube-used

== extension-touch-all
a> put 0 0 60 1\r\nx
a> touch-all
a> reserve
a> touch-all
a> touch-all 1

== extension-flush-tube
a> put 0 0 60 1\r\nx
a> reserve
a> flush-tube default
a> flush-tube nope
a> peek {1}

== extension-flush-buried
a> put 0 0 60 1\r\nx
a> flush-buried default
a> reserve
a> bury {1} 0
a> flush-buried default
a> peek {1}

== extension-truncate
a> put 0 0 60 1\r\nx
a> put 0 0 60 1\r\ny
a> reserve
a> truncate default
a> truncate nope
a> peek {2}
a> release {1} 0 0
a> peek {1}

== extension-peek-reserved
a> put 0 0 60 1\r\nx
a> peek-reserved
a> reserve
a> peek-reserved

== extension-reprioritize
a> put 5 0 60 1\r\nx
a> put 6 0 60 1\r\ny
a> reprioritize {2} 1
a> reserve
a> reprioritize {2} 1
a> reprioritize 18446744073709551615 1

== extension-wait
a> put 0 0 60 1\r\nx
a> wait {1} 0
a> wait 18446744073709551615
b>> wait {1}
a> delete {1}
b<

== extension-weights
a> watch t 5
a> watch t 10000
a> watch t x
a> reserve-mode weighted
a> reserve-mode weighted-fair
a> reserve-mode fifo
a> reserve-mode x
a> list-tubes-watched

== extension-stats-mode
a> put 0 0 60 1\r\nx
a> stats-mode extended
a> stats-job {1}
a> stats-mode
a> stats-mode x
a> stats-mode standard
a> stats-job {1}

== extension-drain
a> drain
a> drain x
a> undrain
a> put 0 0 60 1\r\nx

== extension-meta
a> put 7 0 60 1\r\nx
a> meta pri tube
a> peek {1}
a<
a> meta
a> peek {1}
a> meta x

== extension-fractions-of-seconds
a> put 0 0.5 60 1\r\nx
a> put 0 0 0.25 1\r\nx
a> release 18446744073709551615 0 0.5
a> pause-tube default 0.25
""")
