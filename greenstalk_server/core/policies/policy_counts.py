"""Counters of what policies did to the jobs of one tube. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PolicyCounts:
    """Counts of policy actions on the jobs of a tube, since the tube was created.

    expired         jobs dropped because they were too old.
    dropped         jobs dropped because the tube was full.
    dead_lettered   jobs moved to the tube's dead-letter tube.
    received        jobs that came from other tubes as dead letters.
    buried          jobs buried because there was no dead-letter tube, or it could not take them.
    retried         failed attempts that were delayed by `retry_delay`.
    duplicates      puts that added nothing because of `unique`.
    copied          copies that `copy_to` added to other tubes.
    refused         puts refused by a cap or a maximum size.
    rate_holds, reserved_holds      times that `rate` or `max_reserved` was exhausted.
    """

    expired: int = 0
    dropped: int = 0
    dead_lettered: int = 0
    received: int = 0
    buried: int = 0
    retried: int = 0
    duplicates: int = 0
    copied: int = 0
    refused: int = 0
    rate_holds: int = 0
    reserved_holds: int = 0
