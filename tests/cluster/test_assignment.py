"""Which shard a process follows."""

from __future__ import annotations

from greenstalk_server.cluster.assignment import PATIENCE, ShardView, choose


def view(
    *followers: str, near: str = "", free_for: float | None = None, is_reserved: bool = False, is_near: bool = False
) -> ShardView:
    """Return a shard, free for *free_for* seconds; None: another process leads it.

    *near* is a follower on the machine of its owner, and *is_near* whether the process is on that machine.
    """
    close = [near] if near else []
    return ShardView(free_for is not None, free_for or 0.0, [*followers, *close], close, is_reserved, is_near)


def first() -> float:
    return 0.0


def test_process_takes_over_the_shard_that_it_follows() -> None:
    assert choose([view(free_for=0.0), view("me", free_for=0.0)], "me", 1, None, first) == 1


def test_process_takes_a_shard_that_nobody_follows() -> None:
    assert choose([view("me"), view(free_for=0.0)], "me", 0, None, first) == 1


def test_shard_is_left_to_its_followers_for_a_while() -> None:
    shards = [view("me"), view("other", free_for=PATIENCE - 0.1)]
    assert choose(shards, "me", 0, None, first) == 0
    assert choose([view("me"), view("other", free_for=PATIENCE + 0.1)], "me", 0, None, first) == 1


def test_new_process_follows_the_shard_with_the_fewest_followers() -> None:
    assert choose([view("a", "b"), view("c"), view("d")], "me", None, None, first) == 1


def test_new_process_prefers_an_owner_on_another_machine() -> None:
    assert choose([view(is_near=True), view()], "me", None, None, first) == 1


def test_one_process_at_a_time_leaves_a_crowded_shard() -> None:
    shards = [view("a", "b"), view()]
    assert choose(shards, "a", 0, None, first) == 0
    assert choose(shards, "b", 0, None, first) == 1
    assert choose([view("a", "b"), view("c")], "b", 0, None, first) == 0


def test_process_leaves_a_shard_whose_owner_is_on_its_machine() -> None:
    here = view(near="me", is_near=True)
    assert choose([here, view()], "me", 0, None, first) == 1
    assert choose([here, view("other")], "me", 0, None, first) == 0
    assert choose([here, view(is_near=True)], "me", 0, None, first) == 0


def test_processes_swap_shards_whose_owners_are_on_their_machines() -> None:
    assert choose([view(near="me", is_near=True), view(near="other")], "me", 0, None, first) == 1
    both_there = view("me", near="a")
    assert choose([view(is_near=True), both_there], "me", 1, None, first) == 1
    assert choose([view(), view("me", near="a", is_near=True)], "a", 1, None, first) == 0


def test_process_follows_the_shard_that_an_operator_wants_it_to_lead() -> None:
    assert choose([view("me", free_for=9.0), view("other")], "me", 0, 1, first) == 1
    assert choose([view("me"), view()], "me", 0, 7, first) == 0


def test_shard_that_another_process_shall_lead_is_left_to_it() -> None:
    assert choose([view(), view("me", free_for=0.0, is_reserved=True)], "me", 1, None, first) == 1
    assert choose([view("me"), view(free_for=9.0, is_reserved=True)], "me", 0, None, first) == 0
