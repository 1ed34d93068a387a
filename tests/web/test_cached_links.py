"""Addresses in templates: those that the endpoint decides are built once for each path prefix."""

from __future__ import annotations

from flask import Flask

from greenstalk_server.web.framework.links import caching_url_for


def test_addresses_follow_the_path_prefix_of_the_request(app: Flask) -> None:
    url_for = caching_url_for(app)
    for _ in range(2):
        for root in ("", "/queue"):
            with app.test_request_context("/", environ_overrides={"SCRIPT_NAME": root}):
                assert url_for("overview") == f"{root}/"
                assert url_for("static", filename="live.js") == f"{root}/static/live.js"
                assert url_for("tube", tube="a&b") == f"{root}/tube?tube=a%26b"
