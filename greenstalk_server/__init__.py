"""Greenstalk Server: a job queue that speaks the beanstalk protocol."""

from typing import Final

__version__: Final = "0.1.0"
