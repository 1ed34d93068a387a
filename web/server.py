"""Creation of the dashboard and of its HTTP server, from the process's options.

Only a server with a dashboard imports this module: importing Flask and the pages takes half of the startup time.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from flask import Flask

from greenstalk_server.cluster.status import ClusterStatus
from greenstalk_server.config.config_file import Reloadable
from greenstalk_server.config.options import Options
from greenstalk_server.core.broker import Broker
from greenstalk_server.net.acceptor import DescriptorBudget, WebServer
from greenstalk_server.net.committer import Committer
from greenstalk_server.net.http import RequestHandler
from greenstalk_server.net.links import Links
from greenstalk_server.net.listeners import describe
from greenstalk_server.runtime import logs
from greenstalk_server.runtime.clock import Clock
from greenstalk_server.runtime.threads import run_in_thread
from greenstalk_server.web.app import (
    Dashboard,
    WebOptions,
    answer_as_standby,
    create_dashboard,
    create_standby_app,
)
from greenstalk_server.web.framework.template_cache import load_templates
from greenstalk_server.web.options import Provider
from greenstalk_server.web.store.rows import Rows

if TYPE_CHECKING:
    from greenstalk_server.cluster.membership import Membership

COMMIT_TIMEOUT: Final = 5.0
"""Seconds that a change made on the dashboard waits for the disk, before the response says that it is not durable."""


BY_HOME: Final = "served by the first process"


def _provider(options: Options) -> Provider | None:
    """Return the OpenID Connect provider in *options*, or None."""
    if options.oidc_issuer is None:
        return None
    return Provider(
        issuer=options.oidc_issuer,
        client_id=options.oidc_client_id or "",
        client_secret=options.oidc_client_secret,
        scopes=options.oidc_scopes,
        groups_claim=options.oidc_groups_claim,
        name_claim=options.oidc_name_claim,
        label=options.oidc_label,
    )


class DashboardFactory:
    """Creates dashboards and their HTTP server for one listening socket.

    address         URL of the dashboard.
    settings        returns the current values of the settings that SIGHUP reloads: those of the options, until this is
                    replaced.
    """

    def __init__(self, listener: socket.socket | None, options: Options, beanstalk: str) -> None:
        """*beanstalk* is the queue's address, which the examples on an empty dashboard show.

        *listener* is None if another process of the queue listens, and asks this one.
        """
        self._listener: socket.socket | None = listener
        self._host: str = options.web_host
        self.address: str = f"http://{describe(listener)}{options.url_prefix}/" if listener is not None else BY_HOME
        settings = Reloadable(options.policies, options.attention, options.alerts, options.servers)
        self.settings: Callable[[], Reloadable] = lambda: settings
        self._options: WebOptions = WebOptions(
            user=options.web_user,
            password=options.web_password,
            operator_password=options.operator_password,
            viewer_password=options.viewer_password,
            api_token=options.api_token,
            api_operator_token=options.api_operator_token,
            api_viewer_token=options.api_viewer_token,
            metrics_token=options.metrics_token,
            session_idle_time=options.session_idle_ns,
            session_lifetime=options.session_lifetime_ns,
            roles=options.roles,
            users=options.users,
            oidc=_provider(options),
            is_read_only=options.read_only,
            hides_bodies=options.hide_bodies,
            hosts=[options.web_host],
            url_prefix=options.url_prefix,
            trusted_proxies=options.trusted_proxies,
            directory=options.data_dir,
            beanstalk=beanstalk,
            limits=options.limits,
            thresholds=lambda: self.settings().attention,
            receivers=lambda: self.settings().alerts,
            peers=lambda: self.settings().servers,
        )

    def start_dashboard(
        self,
        broker: Broker,
        clock: Clock,
        committer: Committer | None,
        role: Callable[[], ClusterStatus] | None = None,
        rows: Rows | None = None,
        links: Links | None = None,
        membership: Membership | None = None,
    ) -> Dashboard:
        """Return a started dashboard of *broker*. *committer* commits its journal; None without a journal.

        *links* connect this process to those of the other shards; None if there are none. *membership* is that of a
        queue with shards in a database; None for any other.

        *rows* keep the data of the dashboard if they are not None. Call `Dashboard.restore` once this server leads.

        Takes 0.15 s of CPU in short slices, and 0.6 s more if the templates have to be compiled. Switches.
        """
        commit = partial(committer.wait, COMMIT_TIMEOUT) if committer is not None else None
        dashboard = create_dashboard(
            broker, clock, self._options, commit=commit, role=role, rows=rows, links=links, membership=membership
        )
        dashboard.start()
        return dashboard

    def create_standby_app(
        self,
        role: Callable[[], ClusterStatus],
        hostname: str,
        clock: Clock,
        links: Callable[[], Links | None],
        max_job_size: int,
        *,
        is_one_of_several: bool,
    ) -> Flask:
        """Return the app that a standby serves: see web.standby. Switches.

        Compile the templates if they are not in the cache, so that a takeover need not wait for that.
        """
        app = create_standby_app(
            role, hostname, clock, self._options, links, max_job_size, is_one_of_several=is_one_of_several
        )
        run_in_thread(load_templates, app.jinja_env)
        return app

    def answer_as_standby(self, links: Links, broker: Broker, hostname: str, clock: Clock) -> None:
        """Answer questions of other processes about the clients of *broker*: see web.standby. Does not switch."""
        answer_as_standby(links, broker, hostname, clock, self._options)

    @property
    def listens(self) -> bool:
        """Whether this process serves the web port."""
        return self._listener is not None

    def create_server(self, app: Flask, files: DescriptorBudget) -> WebServer:
        """Return an HTTP server of *app*, not started."""
        assert self._listener is not None
        server = WebServer(
            self._listener,
            app,
            log=None,  # the handler logs requests
            error_log=logs.web_errors,
            handler_class=RequestHandler,
            environ={"SERVER_NAME": self._host},  # without it, gevent queries the DNS
        )
        server.files = files
        return server
