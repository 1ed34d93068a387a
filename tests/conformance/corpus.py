"""All conversations, by name."""

from . import (
    corpus_extensions,
    corpus_framing,
    corpus_jobs,
    corpus_names,
    corpus_numbers,
    corpus_order,
    corpus_servers,
    corpus_stats,
    corpus_time,
    corpus_tubes,
    corpus_waiting,
)
from .script import Conversation

_ALL: list[Conversation] = [
    *corpus_framing.CONVERSATIONS,
    *corpus_numbers.CONVERSATIONS,
    *corpus_names.CONVERSATIONS,
    *corpus_jobs.CONVERSATIONS,
    *corpus_waiting.CONVERSATIONS,
    *corpus_tubes.CONVERSATIONS,
    *corpus_stats.CONVERSATIONS,
    *corpus_servers.CONVERSATIONS,
    *corpus_order.CONVERSATIONS,
    *corpus_time.CONVERSATIONS,
    *corpus_extensions.CONVERSATIONS,
]

CORPUS: dict[str, Conversation] = {conversation.name: conversation for conversation in _ALL}
assert len(CORPUS) == len(_ALL), "two conversations have the same name"
