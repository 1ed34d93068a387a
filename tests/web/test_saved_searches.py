"""Saved searches: on the search page and a tube's page, over the API, and on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from greenstalk_server.web.framework.access import Principal
from greenstalk_server.web.store.saved_data import MAX_SEARCHES, SavedData, SavedSearch

from .api.conftest import Program, problem
from .conftest import Queue
from .forms import SAME_ORIGIN
from .stored import local_store
from .table import Page


def save(client: FlaskClient, name: str = "stuck", q: str = "age:>2h", **form: Any) -> TestResponse:
    return client.post("/search/save", data={"name": name, "q": q, **form}, headers=SAME_ORIGIN)


def shown(client: FlaskClient) -> list[tuple[str, str]]:
    """Return name and URL of the searches on the search page."""
    html = client.get("/search").text
    if "Saved searches" not in html:
        return []
    part = html.split("Saved searches</h2>", 1)[1].split("</ul>", 1)[0]
    elements = Page(f"<ul>{part.split('<ul', 1)[1].split('>', 1)[1]}</ul>")
    urls = [attributes["href"] or "" for tag, attributes in elements.elements if tag == "a"]
    names = [line.strip() for line in elements.text.splitlines() if line.strip() and line.strip() != "Delete"]
    return list(zip(names[::2], urls, strict=True))


def test_search_is_saved_run_and_deleted(client: FlaskClient) -> None:
    assert shown(client) == []
    response = save(client, " stuck  jobs ", "state:buried  age:>2h")
    assert response.headers["Location"] == "/search?q=state:buried+age:%3E2h&notice=saved-search&n=0"
    assert "The search was saved." in client.get(response.headers["Location"]).text
    assert shown(client) == [("stuck jobs", "/search?q=state:buried+age:%3E2h")]
    save(client, "Another", "pri:0")
    save(client, "stuck jobs", "age:>3h")
    assert shown(client) == [("Another", "/search?q=pri:0"), ("stuck jobs", "/search?q=age:%3E3h")]
    response = client.post("/search/delete", data={"name": "stuck jobs"}, headers=SAME_ORIGIN)
    assert response.status_code == 303
    assert [name for name, _ in shown(client)] == ["Another"]
    assert client.post("/search/delete", data={"name": "stuck jobs"}, headers=SAME_ORIGIN).status_code == 404


def test_filter_of_a_tube_is_saved_with_the_tube_and_the_state(queue: Queue, client: FlaskClient) -> None:
    queue.put("mail")
    assert "Save this search" in client.get("/tube?tube=mail&q=age:>0").text
    save(client, tube="mail", state="buried")
    assert shown(client) == [("stuck", "/search?q=tube:mail+state:buried+age:%3E2h")]


def test_number_of_searches_is_limited(client: FlaskClient) -> None:
    for number in range(MAX_SEARCHES):
        assert save(client, f"{number}").status_code == 303
    assert save(client, "one more").status_code == 409
    assert save(client, "0", "pri:1").status_code == 303, "a replacement needs no room"


def test_search_of_a_tube_that_the_principal_does_not_see_is_hidden(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(client, "one", "tube:secret")
    save(client, "two", "pri:0")
    monkeypatch.setattr(Principal, "sees", lambda self, tube: tube != b"secret")
    assert [name for name, _ in shown(client)] == ["two"]
    assert client.post("/search/delete", data={"name": "one"}, headers=SAME_ORIGIN).status_code == 404


# The API


def test_api(program: Program) -> None:
    assert program.do("POST", "/saved-searches", {"name": "stuck", "q": "age:>2h  state:buried"}, 201) == {
        "name": "stuck",
        "q": "age:>2h state:buried",
    }
    program.do("POST", "/saved-searches", {"name": "A", "q": "pri:0"}, 201)
    found = program.get("/saved-searches")
    assert [search["name"] for search in found["searches"]] == ["A", "stuck"]
    assert found["trouble"] == ""
    program.do("DELETE", "/saved-searches", status=204, name="A")
    problem(program.ask("DELETE", "/saved-searches?name=A"), 404)
    problem(program.ask("POST", "/saved-searches", json={"name": "x", "q": "age:soon"}), 400, "q")
    problem(program.ask("POST", "/saved-searches", json={"name": "x", "q": " "}), 400, "q")
    problem(program.ask("POST", "/saved-searches", json={"name": " ", "q": "pri:0"}), 400, "name")


@pytest.fixture
def program(queue: Queue) -> Program:
    return Program(queue.app(api_token="let-me-in"))  # noqa: S106


# Rows


def test_searches_survive_a_restart(tmp_path: Path) -> None:
    for expected in ({}, {"stuck": SavedSearch("stuck", "age:>2h")}):
        store = local_store(tmp_path)
        saved = SavedData(store)
        store.restore()
        assert saved.searches == expected
        saved.add_search(SavedSearch("stuck", "age:>2h"))
        saved.save()
