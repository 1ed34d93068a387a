"""The dashboard as this process serves it.

Imported only by a server that has one: with Flask and the pages it takes half the time of a start.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from flask import Flask

from greenstalk_server.cluster.status import ClusterStatus
from greenstalk_server.config.options import Options
from greenstalk_server.core.broker import Broker
from greenstalk_server.net.acceptor import Files, WebServer
from greenstalk_server.net.committer import Committer
from greenstalk_server.net.http import RequestHandler
from greenstalk_server.net.listeners import describe
from greenstalk_server.runtime import logs
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.web.app import WebOptions, create_app, create_standby_app, warm_up

COMMIT_TIMEOUT: Final = 5.0
"""Seconds that a change made on the dashboard waits for the disk, before its page says that the disk fails."""


class Dashboard:
    """Where the dashboard is served, and with what settings."""

    def __init__(self, listener: socket.socket, options: Options, beanstalk: str) -> None:
        """*beanstalk* is where the examples of the dashboard connect to."""
        self._listener: socket.socket = listener
        self._host: str = options.web_host
        self.address: str = f"http://{describe(listener)}{options.url_prefix}/"
        self._options: WebOptions = WebOptions(
            user=options.web_user,
            password=options.web_password,
            viewer_password=options.viewer_password,
            api_token=options.api_token,
            api_viewer_token=options.api_viewer_token,
            metrics_token=options.metrics_token,
            is_read_only=options.read_only,
            hides_bodies=options.hide_bodies,
            hosts=[options.web_host],
            url_prefix=options.url_prefix,
            trusted_proxies=options.trusted_proxies,
            directory=options.binlog_dir,
            beanstalk=beanstalk,
        )

    def app(
        self, broker: Broker, clock: Clock, committer: Committer | None, role: Callable[[], ClusterStatus] | None = None
    ) -> Flask:
        """Return the dashboard of *broker*, whose journal has *committer*, if any.

        Takes 0.07 s of CPU, and 0.2 s more if the templates have to be compiled.
        """
        commit = partial(committer.wait, COMMIT_TIMEOUT) if committer is not None else None
        app = create_app(broker, clock, self._options, commit=commit, role=role)
        warm_up(app)
        return app

    def standby_app(self, role: Callable[[], ClusterStatus], hostname: str, clock: Clock) -> Flask:
        """What there is to see of a server that stands by."""
        return create_standby_app(role, hostname, clock, self._options)

    def server(self, app: Flask, files: Files) -> WebServer:
        """An HTTP server of *app*, not started."""
        server = WebServer(
            self._listener,
            app,
            log=None,  # the handler logs requests
            error_log=logs.web_errors,
            handler_class=RequestHandler,
            environ={"SERVER_NAME": self._host},  # else gevent asks the DNS for one
        )
        server.files = files
        return server
