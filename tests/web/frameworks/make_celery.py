"""Write job bodies as Celery makes them for a broker without AMQP, into the current directory.

    pip install celery && python make_celery.py

Kombu's filesystem transport stores the same JSON as its transports for brokers without AMQP.
"""

import tempfile
from pathlib import Path
from typing import Any

from celery import Celery  # type: ignore[import-not-found]


def write(name: str, protocol: int, serializer: str, **options: Any) -> None:
    """Send a task to a directory, and copy its message to the file *name*."""
    with tempfile.TemporaryDirectory() as folder:
        app = Celery("shop", broker="filesystem://")
        app.conf.broker_transport_options = {
            "data_folder_out": folder,
            "data_folder_in": folder,
            "control_folder": f"{folder}/control",
        }
        app.conf.task_protocol = protocol
        app.conf.task_serializer = serializer
        app.send_task("shop.tasks.charge", args=[4711, "zoë"], kwargs={"lines": [{"sku": "a-1"}]}, **options)
        (message,) = Path(folder).glob("*.msg")
        Path(f"{name}.body").write_bytes(message.read_bytes())


write("celery", 2, "json", retries=2)
write("celery-pickle", 2, "pickle")
write("celery-1", 1, "json", retries=1)
