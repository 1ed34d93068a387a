"""Greenstalk Server: a job queue that speaks the beanstalk protocol."""

from typing import Final

from greenstalk_server.build import Build, select
from greenstalk_server.version import full_version

BUILD: Final[Build] = select()
"""The build that runs. Selecting it decides which files later imports load."""

__version__: Final = full_version()
