"""Moves, groups, attributes, policies and unique keys in the journal: replay, damage, compaction, and the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from greenstalk_server.core.jobs import job_history
from greenstalk_server.core.jobs.job import SECOND, Job
from greenstalk_server.core.operations import finishing
from greenstalk_server.core.tubes.tube import Tube
from greenstalk_server.journal import check, record
from greenstalk_server.journal.record import Encoder, SegmentHeader
from greenstalk_server.journal.recovery import Recovery
from tests.journal.disk import Chance, Disk, seeded
from tests.journal.policy_workload import PolicyBench
from tests.journal.workload import recovered
from tests.support.world import START

SALT = b"salt"


def replayed(*records: bytes, is_newest: bool = True) -> Recovery:
    """Return the replay of one segment with *records*, whose numbers begin with 1."""
    jobs: dict[int, Job] = {}
    tubes: dict[bytes, Tube] = {}
    recovery = Recovery(lambda name: tubes.setdefault(name, Tube(name, jobs)), jobs)
    data = SegmentHeader(SALT, 1, 1, 1).encode() + b"".join(records)
    recovery.replay("journal.1", 1, data, is_newest)
    return recovery


def new_job(id: int, tube: bytes = b"mail", body: bytes = b"body") -> Job:
    return Job(id, Tube(tube, {}), body, 1, 0, SECOND, START)


# Moves


def test_move_replaces_tube_state_and_attributes() -> None:
    encoder, job = Encoder(SALT), new_job(7)
    job.unique_key = b"former"
    data = [encoder.job(job, 1)]
    job.tube, job.pri, job.expires_from, job.unique_key = Tube(b"failed.mail", {}), 9, 55, b""
    job.events = job_history.add(b"", job_history.DEAD_LETTERED, START, job_history.NOBODY)
    data.append(encoder.move(job, 2, b"\x02\x08" + (55).to_bytes(8, "little")))
    recovery = replayed(*data)
    (found,) = recovery.jobs.values()
    assert (found.tube.name, found.pri, found.body) == (b"failed.mail", 9, b"body")
    assert (found.expires_from, found.unique_key, found.events) == (55, b"", job.events)
    assert record.recorded_size(found) == len(data[0])
    assert recovery.damage == []


def test_kick_restarts_the_count_of_attempts() -> None:
    encoder, job = Encoder(SALT), new_job(7)
    job.reserves = 4
    data = [encoder.job(job, 1)]
    job.events = job_history.add(b"", job_history.KICKED, START, job_history.NOBODY)
    data.append(encoder.update(job, 2))
    assert replayed(*data).jobs[7].attempts_base == 4
    job.reserves, job.events = 5, job_history.add(b"", job_history.RELEASED, START, job_history.NOBODY)
    assert replayed(*data, encoder.update(job, 3)).jobs[7].attempts_base == 4


@pytest.mark.parametrize("cut", range(1, 40))
def test_move_with_impossible_lengths_is_skipped(cut: int) -> None:
    """A MOVE with a sound CRC whose payload ends within the name of the tube."""
    encoder, job = Encoder(SALT), new_job(7, b"mail")
    job.tube = Tube(b"t" * 40, {})
    whole = encoder.move(job, 2, b"")
    rest = whole[record.PREFIX_SIZE : len(whole) - cut]
    move = encoder.seal((len(rest) - 13).to_bytes(4, "little") + rest[4:])
    recovery = replayed(encoder.job(new_job(7, b"mail"), 1), move)
    assert recovery.jobs[7].tube.name == b"mail"
    assert recovery.records == 2


# Groups


def grouped() -> list[bytes]:
    """Return a job, a group of three jobs, and another job; the bodies are large enough for several sectors."""
    encoder = Encoder(SALT)
    bodies = [bytes([id]) * 700 for id in range(6)]
    jobs = [new_job(id, b"t%d" % id, bodies[id]) for id in range(1, 6)]
    jobs[2].unique_key = b"key"
    jobs[3].events = job_history.add(b"", job_history.EDITED, START, job_history.NOBODY)
    first, last = encoder.job(jobs[0], 1), encoder.job(jobs[4], 6)
    return [
        first,
        encoder.group(3, 2),
        *[encoder.job(job, 3 + at, job.events) for at, job in enumerate(jobs[1:4])],
        last,
    ]


def test_complete_group_takes_effect() -> None:
    recovery = replayed(*grouped())
    assert recovery.jobs.keys() == {1, 2, 3, 4, 5}
    assert (recovery.damage, recovery.records, recovery.sequence) == ([], 6, 6)


@pytest.mark.parametrize("is_newest", [True, False])
def test_group_cut_at_any_byte_takes_effect_completely_or_not_at_all(is_newest: bool) -> None:
    records = grouped()[:-1]
    data, first, whole = b"".join(records), len(records[0]), sum(map(len, records))
    for cut in range(first, whole):
        recovery = replayed(data[:cut], is_newest=is_newest)
        assert recovery.jobs.keys() == {1}, cut
        assert recovery.segments[0].end == record.SEGMENT_HEADER_SIZE + first
        assert recovery.sequence == 1
        assert recovery.is_sound == (is_newest or cut == first)


@pytest.mark.parametrize("lost", [2, 3, 4])
def test_damage_to_one_job_of_a_group_drops_the_group_alone(lost: int) -> None:
    records = grouped()
    broken = bytearray(records[lost])
    broken[-1] ^= 1
    recovery = replayed(*records[:lost], bytes(broken), *records[lost + 1 :], is_newest=False)
    assert recovery.jobs.keys() == {1, 5}
    (damage,) = recovery.damage
    assert (damage.offset, damage.records_lost) == (record.SEGMENT_HEADER_SIZE + len(records[0]), 4)
    assert not damage.is_torn_tail


def test_unwritten_sector_within_a_group_tears_all_that_follows() -> None:
    data = SegmentHeader(SALT, 1, 1, 1).encode() + b"".join(grouped())
    for at in range(1024, len(data) - 1500, 512):
        torn = data[:at] + bytes(512) + data[at + 512 :]
        recovery = replayed(torn[record.SEGMENT_HEADER_SIZE :])
        assert recovery.jobs.keys() == {1}, at
        assert recovery.is_sound


def test_group_lacking_a_record_is_dropped() -> None:
    records = grouped()
    recovery = replayed(*records[:3], *records[4:], is_newest=False)
    assert recovery.jobs.keys() == {1, 5}
    assert not recovery.is_sound


def test_group_larger_than_a_segment_is_in_one_segment() -> None:
    bench = PolicyBench(Disk(), seeded(1))
    jobs = [new_job(bench.broker.allocate_id(), b"big", bytes(3000)) for _ in range(9)]
    assert bench.journal.put_group(jobs)
    assert len({job.segment for job in jobs}) == 1
    assert bench.commit()
    after = recovered(bench.disk, START)
    assert after.jobs.keys() == {job.id for job in jobs}


# Policies and keys


def test_policies_and_keys_survive_compaction_and_restarts() -> None:
    bench = PolicyBench(Disk(), seeded(1))
    bench.set_policy("mail", b'{"max_attempts":5}')
    bench.set_policy("gone", b"{}")
    bench.set_policy("gone", b"")
    for at in range(50):
        bench.journal.keys[b"mail", b"key%d" % at] = at, START + (at + 1) * SECOND
        bench.journal.key(b"mail", b"key%d" % at, at, START + (at + 1) * SECOND)
    for _ in range(300):
        finishing.delete(bench.broker, None, bench.put(500), bench.now)
        bench.commit()
        bench.journal.compact(4096)
        bench.run_maintenance()
    assert min(bench.journal._log.segments) > 20
    bench.check_recorded()
    assert bench.journal.stats().bytes_live == bench.journal.entry_bytes
    bench = PolicyBench(bench.disk.crash(Chance(seeded(0), 1.0)), seeded(2), START + 30 * SECOND)
    assert bench.journal.policies == {"mail": b'{"max_attempts":5}'}
    assert bench.journal.keys == {(b"mail", b"key%d" % at): (at, START + (at + 1) * SECOND) for at in range(30, 50)}
    assert bench.journal.live_bytes == bench.live_bytes


def test_space_of_expired_keys_is_reclaimed() -> None:
    bench = PolicyBench(Disk(), seeded(1))
    for at in range(500):
        bench.journal.keys[b"mail", b"key%d" % at] = at, bench.now
        bench.journal.key(b"mail", b"key%d" % at, at, bench.now)
        bench.commit()
    bench.expire_keys()
    for _ in range(300):
        finishing.delete(bench.broker, None, bench.put(500), bench.now)
        bench.commit()
        bench.journal.compact(4096)
        bench.run_maintenance()
    assert bench.journal.live_bytes == 0


def test_report_names_moves_groups_policies_and_keys(tmp_path: Path) -> None:
    bench = PolicyBench(Disk(), seeded(5))
    for _ in range(50):
        bench.step()
    bench.set_policy("mail", b"{}")
    bench.journal.key(b"mail", b"key", 1, 2**63)
    bench.commit()
    for name, data in bench.disk.contents().items():
        (tmp_path / name).write_bytes(data)
    report = check.inspect(str(tmp_path), bench.now)
    lines = check.describe(report)
    assert any(" group, " in line and " move, " in line and " policy, " in line for line in lines)
    assert any(line.startswith("policies: ") and "mail" in line for line in lines)
    assert f"unique keys that outlive their jobs: {len(report.recovery.keys)}" in lines
    assert f"bytes: {record_bytes(report.recovery)} live of" in "\n".join(lines)


def record_bytes(recovery: Recovery) -> int:
    entries: list[record.Entry] = [*recovery.policies, *recovery.pauses, *recovery.keys]
    return sum(map(record.recorded_size, recovery.jobs.values())) + sum(recovery.entries[one][1] for one in entries)
