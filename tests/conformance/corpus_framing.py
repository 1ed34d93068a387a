"""Framing: where lines and bodies end, what is skipped, and where the next command begins.

`list-tube-used` after an edge case shows where parsing continued: its reply is known, and appears once.
"""

from .script import parse_corpus

LINES = parse_corpus(r"""
== empty-line
a>
a> list-tube-used

== several-empty-lines
a+ \r\n\r\n\r\n
a< 3
a> list-tube-used

== bare-newlines
a> list-tube-used\nlist-tube-used
a> list-tube-used
a> \nlist-tube-used
a> list-tube-used
a> list-tube-used\n
a> list-tube-used

== newline-then-carriage-return
a> list-tube-used\n\rx
a> list-tube-used

== only-newlines
a> \n\n\n
a> list-tube-used

== http-request
a+ GET / HTTP/1.1\r\nHost: localhost\r\n\r\n
a< 3
a> list-tube-used

== fragment-then-the-rest
a+ list-tu
a quiet
a+ be-used
a quiet
a+ \r
a quiet
a+ \n
a<
a> list-tube-used

== crlf-in-two-fragments
a+ list-tube-used\r
a quiet
a+ \nlist-tube-used\r
a< 1
a+ \n
a<

== two-commands-in-one-chunk
a+ list-tube-used\r\nlist-tube-used\r\n
a< 2

== a-command-and-a-half
a+ list-tube-used\r\nlist-tu
a<
a quiet
a+ be-used\r\n
a<

== a-hundred-commands-in-one-chunk
a+ {list-tube-used\r\n*100}
a< 100

== replies-in-the-order-of-commands
a+ use x\r\nwatch x\r\nput 0 0 60 1\r\nq\r\nreserve\r\nnope\r\ndelete {1}\r\ndelete {1}\r\nkick 1\r\n
a< 8

== pipelined-errors-in-the-order-of-commands
a+ put 0 0 60 1\r\nx\r\nnope\r\npeek-ready\r\nput 0 0 60 1 x\r\npeek-buried\r\nput x\r\npeek-ready\r\n
a< 7

== pipelined-long-line-in-the-order-of-commands
a+ peek-ready\r\n{l*300}\r\npeek-buried\r\n
a< 3

== pipelined-body-too-big-in-the-order-of-commands
a+ peek-ready\r\nput 0 0 60 65536\r\n{x*65536}\r\npeek-buried\r\n
a< 3

== pipelined-body-missing-crlf-in-the-order-of-commands
a+ peek-ready\r\nput 0 0 60 1\r\nabc\r\npeek-buried\r\n
a< 2

== pipelined-job-cycle
a+ put 0 0 60 3\r\none\r\nput 0 0 60 3\r\ntwo\r\nreserve\r\nreserve\r\ndelete {1}\r\ndelete {2}\r\n
a< 6

== quit-closes-without-a-reply
a>> quit
a end

== quit-with-anything-after-it
a>> quitx
a end

== quit-with-an-argument
a>> quit now
a end

== quit-discards-later-commands
a+ list-tube-used\r\nquit\r\nlist-tube-used\r\n
a<
a end

== quit-after-a-body
a+ put 0 0 60 1\r\nx\r\nquit\r\n
a<
a end
b> peek {1}
""")

LONG_LINES = parse_corpus(r"""
== lines-of-223-to-100000-bytes
a> {x*221}
a> list-tube-used
a> {x*222}
a> list-tube-used
a> {x*224}
a> list-tube-used
a> {x*225}
a> list-tube-used
a> {x*298}
a> list-tube-used
a> {x*445}
a> list-tube-used
a> {x*446}
a> list-tube-used
a> {x*448}
a> list-tube-used
a> {x*669}
a> list-tube-used
a> {x*4998}
a> list-tube-used
a> {x*99998}
a> list-tube-used

== line-of-225-bytes
a> {x*223}
a> list-tube-used

== line-of-449-bytes
a> {x*447}
a> list-tube-used

== line-of-673-bytes
a> {x*671}
a> list-tube-used

== several-long-lines-get-one-reply-each
a> {x*300}
a> {y*500}
a> {z*1000}
a> list-tube-used

== known-command-padded-to-224-bytes
a> put 0 0 60 1\r\nx
a> delete {0*209}{1}
a> list-tube-used

== known-command-padded-beyond-224-bytes
a> put 0 0 60 1\r\nx
a> delete {0*230}{1}
a> delete {1}

== tube-name-of-200-bytes-with-every-command
a> use {t*200}
a> watch {t*200}
a> stats-tube {t*200}
a> list-tube-used
a> list-tubes
a> list-tubes-watched
a> pause-tube {t*200} 4294967295
a> pause-tube {t*200} 0
a> put 0 0 60 1\r\nx
a> stats-job {1}
a> ignore {t*200}

== long-line-arriving-in-fragments
a+ {x*200}
a quiet
a+ {x*24}
a quiet
a+ {x*100}
a quiet
a+ \r\n
a<
a> list-tube-used

== long-line-with-newlines-inside
a> {x*150}\n{y*150}
a> list-tube-used

== long-line-with-a-nul-inside
a> {x*150}\0{y*150}
a> list-tube-used

== long-line-that-begins-like-quit
a> quit {x*300}
a> list-tube-used

== long-line-that-begins-like-put
a> put 0 0 60 5 {x*300}
a> list-tube-used

== long-line-then-put
a> {x*400}
a> put 0 0 60 5\r\nhello
a> peek {1}

== long-line-never-ended-then-half-close
a+ {x*400}
a half-close
a end

== carriage-return-as-byte-224
a> {x*223}
a> use one
a> list-tube-used

== carriage-return-as-byte-448
a> {x*447}
a> use one
a> list-tube-used

== stray-carriage-return-in-a-short-line
a> list-tube-used\rx
a> list-tube-used

== stray-carriage-return-at-the-start
a> \rlist-tube-used
a> list-tube-used

== stray-carriage-return-doubled-at-the-end
a> list-tube-used\r
a> list-tube-used

== stray-carriage-returns-many
a> \r\r\r
a> list-tube-used

== stray-carriage-return-in-a-tube-name
a> use on\re
a> list-tube-used

== stray-carriage-return-in-a-long-line
a> {x*250}\r{y*50}
a> list-tube-used

== stray-carriage-return-at-byte-224-of-a-long-line
a> {x*223}\r{y*50}
a> list-tube-used
""")

BODIES = parse_corpus(r"""
== body-contains-a-command
a> put 0 0 60 16\r\nlist-tube-used\r\n
a> list-tube-used
a> peek {1}

== body-contains-crlf-only
a> put 0 0 60 2\r\n\r\n
a> peek {1}

== body-contains-every-byte-class
a> put 0 0 60 10\r\n\0\x01\t\n\r\x7f\x80\xff \x20
a> peek {1}

== body-empty
a> put 0 0 60 0\r\n
a> peek {1}
a> reserve
a> list-tube-used

== body-of-one-byte
a> put 0 0 60 1\r\nx
a> peek {1}

== body-of-max-size
a> put 0 0 60 65535\r\n{x*65535}
a> peek {1}
a> reserve

== body-one-above-max-size
a> put 0 0 60 65536\r\n{x*65536}
a> list-tube-used
a> put 0 0 60 1\r\nx

== body-too-big-is-discarded
a> put 0 0 60 65536\r\n{list-tube-used\r\n*4096}
a> list-tube-used

== body-too-big-discards-two-more-bytes
a> put 0 0 60 65536\r\n{x*65536}ablist-tube-used
a> list-tube-used

== body-too-big-with-trailing-garbage-on-the-line
a> put 0 0 60 65536 garbage\r\n{x*65536}
a> list-tube-used

== body-too-big-is-refused-after-it-is-discarded
a+ put 0 0 60 70000\r\n
a quiet
a+ {x*60000}
a quiet
a+ {x*10000}
a quiet
a+ \r\n
a<
a> list-tube-used

== body-too-big-then-half-close-inside-it
a+ put 0 0 60 70000\r\n{x*60000}
a half-close
a end

== body-of-the-largest-u32-size
a+ put 0 0 60 4294967295\r\nlist-tube-used\r\n
a quiet

== body-size-beyond-u32
a> put 0 0 60 4294967296
a> list-tube-used

== body-too-long-by-one
a> put 0 0 60 4\r\nhello
a> list-tube-used

== body-too-long-by-two
a> put 0 0 60 3\r\nhello
a<
a> list-tube-used

== body-too-long-then-a-command
a+ put 0 0 60 1\r\nxyzlist-tube-used\r\n
a< 2
a> list-tube-used

== body-too-short-by-one-includes-the-carriage-return
a>> put 0 0 60 6\r\nhello
a quiet
a+ x
a quiet
a> list-tube-used

== body-too-short-by-two-includes-its-crlf
a+ put 0 0 60 7\r\nhello\r\n
a quiet
a>
a> peek {1}

== body-ends-with-lf-only
a> put 0 0 60 5\r\nhello\nx
a> list-tube-used

== body-ends-with-crcr
a+ put 0 0 60 5\r\nhello\r\rlist-tube-used\r\n
a< 2

== body-ends-with-lfcr
a+ put 0 0 60 5\r\nhello\n\rlist-tube-used\r\n
a< 2

== body-missing-crlf-uses-an-id
a+ put 0 0 60 5\r\nhelloxy
a<
b> put 0 0 60 1\r\nx
b> peek {1}
b> peek {2}

== body-missing-crlf-counts-as-a-put
a+ put 0 0 60 5\r\nhelloxy
a<
a close
b> stats

== body-in-fragments
a+ put 0 0 60 10\r\n
a quiet
a+ 01234
a quiet
a+ 56789
a quiet
a+ \r
a quiet
a+ \n
a<
a> peek {1}

== body-and-the-next-command-in-one-chunk
a+ put 0 0 60 5\r\nhello\r\nlist-tube-used\r\n
a< 2

== put-line-refused-leaves-the-body-unskipped
a> put x 0 60 5\r\nhello
a<
a> list-tube-used

== put-line-refused-and-the-body-is-a-command
a> put 0 0 60 x\r\nlist-tube-used
a<
a> list-tube-used

== put-trailing-garbage-leaves-the-body-unskipped
a> put 0 0 60 5 x\r\nhello
a<
a> put 0 0 60 1\r\nx

== put-trailing-space-leaves-the-body-unskipped
a> put 0 0 60 5 \r\nlist-tube-used
a<
a> put 0 0 60 1\r\nx

== put-trailing-garbage-counts-but-makes-no-producer
a> put 0 0 60 5 x
a> stats

== put-refused-number-does-not-count
a> put 0 0 60 x
a> put 0 0 60
a> put 0 0
a> put 0
a> put\x20
a> put
a> stats

== put-too-big-counts-but-makes-no-producer
a> put 0 0 60 65536\r\n{x*65536}
a> stats

== disconnect-inside-a-command-line
a+ list-tube-u
a half-close
a end

== disconnect-inside-a-body
a+ put 0 0 60 10\r\nhalf
a half-close
a end
b> put 0 0 60 1\r\nx
b> peek {1}
b> peek {2}

== disconnect-between-body-and-crlf
a+ put 0 0 60 4\r\nhalf
a close
b> put 0 0 60 1\r\nx
b> peek {1}
b> stats

== disconnect-between-cr-and-lf-of-a-body
a+ put 0 0 60 4\r\nhalf\r
a close
b> peek {1}
b> put 0 0 60 1\r\nx

== half-close-after-a-whole-body
a+ put 0 0 60 4\r\nhalf\r\n
a half-close
a end
b> peek {1}

== ids-follow-the-order-of-put-headers
a+ put 0 0 60 1\r\n
b> put 0 0 60 1\r\nb
a> a
b> peek {1}
b> peek {2}

== ids-follow-headers-over-three-connections
a+ put 0 0 60 1\r\n
b+ put 0 0 60 1\r\n
c> put 0 0 60 1\r\nc
b> b
a> a
c> put 0 0 60 1\r\nd
c> reserve
c> reserve
c> reserve
c> reserve

== half-uploaded-job-cannot-be-peeked
a+ put 0 0 60 4\r\nha
b> peek {1}
a> lf
b> peek {1}

== half-uploaded-job-has-no-stats
a+ put 0 0 60 4\r\nha
b> stats-job {1}
a> lf
b> peek {1}

== half-uploaded-job-cannot-be-deleted
a+ put 0 0 60 4\r\nha
b> delete {1}
a> lf
b> delete {1}

== half-uploaded-job-cannot-be-reserved
a+ put 0 0 60 4\r\nha
b> reserve-job {1}
b> reserve-with-timeout 0
b> kick-job {1}
b> kick 1
a> lf
b> reserve-with-timeout 0

== half-uploaded-job-is-not-counted
a+ use t\r\nput 0 0 60 4\r\nha
a<
b> stats-tube t
b> stats
a> lf
b> stats-tube t

== half-uploaded-job-keeps-its-tube
a+ use t\r\nput 0 0 60 1\r\n
a<
b> list-tubes
a> x
b> stats-job {1}
""")

CONVERSATIONS = [*LINES, *LONG_LINES, *BODIES]
