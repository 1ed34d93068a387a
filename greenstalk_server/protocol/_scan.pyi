from greenstalk_server.protocol.session_state import Command
from greenstalk_server.protocol.verb import Verb

def next_command(
    known: dict[bytes, Command], numbered: tuple[bytes | Verb, ...], data: bytes, pos: int, limit: int, /
) -> tuple[bytes, Command | None] | None: ...
def cut(data: bytes, max_payload: int, last_kind: int, /) -> tuple[list[tuple[int, int, bytes]], int]: ...
