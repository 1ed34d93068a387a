"""Events of several connections that arrive while the server is stopped take effect in the order of arrival."""

from .script import parse_corpus

FEW = parse_corpus(r"""
== a-close-comes-before-a-later-reserve
a> put 0 0 60 1\r\nx
a> reserve
b open
pause-server
a close
b>> reserve-with-timeout 0
continue-server
b<

== a-quit-comes-before-a-later-reserve
a> put 0 0 60 1\r\nx
a> reserve
b open
pause-server
a>> quit
b>> reserve-with-timeout 0
continue-server
a end
b<

== a-half-close-comes-before-a-later-reserve
a> put 0 0 60 1\r\nx
a> reserve
b open
pause-server
a half-close
b>> reserve-with-timeout 0
continue-server
a end
b<

== a-reserve-comes-before-a-later-close
a> put 0 0 60 1\r\nx
a> reserve
b open
pause-server
b>> reserve-with-timeout 0
a close
continue-server
b<

== a-close-comes-before-later-stats
a open
b open
pause-server
a close
b>> stats
continue-server
b<

== stats-come-before-a-later-close
a open
b open
pause-server
b>> stats
a close
continue-server
b<

== a-new-connection-comes-before-later-stats
b open
pause-server
c open
b>> stats
continue-server
b<

== a-close-drops-the-tube-before-a-later-list
a> use mail
b open
pause-server
a close
b>> list-tubes
continue-server
b<

== a-new-connection-is-served-after-existing-ones
b open
pause-server
c>> put 0 0 60 1\r\nx
b>> reserve-with-timeout 0
continue-server
c<
b<

== puts-get-ids-in-order-of-arrival
a open
b open
c open
d open
e open
pause-server
a>> put 0 0 60 1\r\na
b>> put 0 0 60 1\r\nb
c>> put 0 0 60 1\r\nc
d>> put 0 0 60 1\r\nd
e>> put 0 0 60 1\r\ne
continue-server
a<
b<
c<
d<
e<

== puts-in-reverse-order-get-ids-in-order-of-arrival
a open
b open
c open
d open
e open
pause-server
e>> put 0 0 60 1\r\na
d>> put 0 0 60 1\r\nb
c>> put 0 0 60 1\r\nc
b>> put 0 0 60 1\r\nd
a>> put 0 0 60 1\r\ne
continue-server
a<
b<
c<
d<
e<

== reserves-get-jobs-in-order-of-arrival
p> put 0 0 60 1\r\na
p> put 0 0 60 1\r\nb
p> put 0 0 60 1\r\nc
a open
b open
c open
pause-server
c>> reserve
a>> reserve
b>> reserve
continue-server
a<
b<
c<

== a-put-comes-before-a-later-reserve
a open
b open
pause-server
a>> put 0 0 60 1\r\nx
b>> reserve-with-timeout 0
continue-server
a<
b<

== a-reserve-comes-before-a-later-put
a open
b open
pause-server
b>> reserve-with-timeout 0
a>> put 0 0 60 1\r\nx
continue-server
a<
b<

== a-delete-comes-before-a-later-peek
a> put 0 0 60 1\r\nx
b open
pause-server
a>> delete {1}
b>> peek {1}
continue-server
a<
b<

== a-peek-comes-before-a-later-delete
a> put 0 0 60 1\r\nx
b open
pause-server
b>> peek {1}
a>> delete {1}
continue-server
a<
b<

== a-release-comes-before-a-later-reserve
a> put 0 0 60 1\r\nx
a> reserve
b open
pause-server
a>> release {1} 0 0
b>> reserve-with-timeout 0
continue-server
a<
b<

== a-pause-comes-before-a-later-reserve
a> put 0 0 60 1\r\nx
b open
pause-server
a>> pause-tube default 60
b>> reserve-with-timeout 0
continue-server
a<
b<

== a-kick-comes-before-a-later-reserve
a> put 0 0 60 1\r\nx
a> reserve
a> bury {1} 0
b open
pause-server
a>> kick 1
b>> reserve-with-timeout 0
continue-server
a<
b<

== three-closes-return-their-jobs-before-three-reserves
a> put 0 0 60 1\r\na
a> put 0 0 60 1\r\nb
a> put 0 0 60 1\r\nc
a> reserve
b> reserve
c> reserve
d open
e open
f open
pause-server
c close
d>> reserve-with-timeout 0
a close
e>> reserve-with-timeout 0
b close
f>> reserve-with-timeout 0
continue-server
d<
e<
f<
""")

_LETTERS = "abcdefghijklmnopqrst"

MANY = parse_corpus(
    "\n".join(
        [
            "== puts-of-twenty-connections-get-ids-in-order-of-arrival",
            *(f"{letter} open" for letter in _LETTERS),
            "pause-server",
            *(rf"{letter}>> put 0 0 60 1\r\n{letter}" for letter in _LETTERS),
            "continue-server",
            *(f"{letter}<" for letter in _LETTERS),
            "",
            "== a-close-among-twenty-connections-comes-before-a-later-reserve",
            r"a> put 0 0 60 1\r\nx",
            "a> reserve",
            *(f"{letter} open" for letter in _LETTERS[1:]),
            "pause-server",
            "a close",
            "t>> reserve-with-timeout 0",
            "continue-server",
            "t<",
            "",
        ]
    )
)

CONVERSATIONS = [*FEW, *MANY]
