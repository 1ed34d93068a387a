"""`reserve`, `lease` and `release`: jobs reserved over HTTP."""

from __future__ import annotations

import greenstalk
import pytest

from tests.ctl.world import WithApi, connect, ctl, ids, run


def test_reserved_job_is_kept_until_its_lease_ends(with_api: WithApi) -> None:
    with connect(with_api, "mail") as mail:
        first, second, third = (mail.put(body, ttr=60) for body in (b"one", b"two", b"three"))
        job_id, token, body = ctl(with_api, "reserve", "mail").text.splitlines()
        assert (int(job_id), body) == (first, "one")
        assert mail.stats_job(first)["state"] == "reserved"
        assert ctl(with_api, "lease", "touch", token, "--json").json["id"] == first
        assert ctl(with_api, "lease", "show", token).code == 0
        assert ctl(with_api, "lease", "delete", token, "--json").json == {"delete": True}
        ended = ctl(with_api, "lease", "delete", token)
        assert (ended.code, "the lease has ended" in ended.err) == (1, True)
        token = ctl(with_api, "reserve", "mail", "--json").json["token"]
        assert ctl(with_api, "lease", "release", token, "--delay", "1h", "--pri", "3").code == 0
        assert (mail.stats_job(second)["state"], mail.stats_job(second)["pri"]) == ("delayed", 3)
        assert ctl(with_api, "lease", "bury", ctl(with_api, "reserve", "mail", "--json").json["token"]).code == 0
        assert ids(mail, "mail", "buried") == [third]
    none = ctl(with_api, "reserve", "mail", "--wait", "100ms")
    assert (none.code, none.err) == (1, "greenstalkctl: no job of mail is ready\n")


def test_job_is_taken_from_the_client_that_holds_it(with_api: WithApi) -> None:
    with connect(with_api, "mail") as mail:
        mail.put(b"x")
        job = mail.reserve(0)
        assert ctl(with_api, "release", str(job.id), "--json").json == {"released": 1, "missed": []}
        with pytest.raises(greenstalk.NotFoundError):
            mail.bury(job)
    assert ctl(with_api, "release", "99999").code == 1


def test_protocol_cannot_keep_a_reservation() -> None:
    done = run("reserve", "mail")
    assert done.code == 2 and "`work` runs a command for each job" in done.err
