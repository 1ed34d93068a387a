"""Write the manual pages and completion scripts where a Debian package has them: python -m tools.manual DIR.

Files below DIR: man/man1, bash-completion/completions, zsh/vendor-completions and fish/vendor_completions.d, as in
/usr/share. The date of the pages is SOURCE_DATE_EPOCH, by default today.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
import time
from pathlib import Path

from tools.manual import completion, pages


def write(directory: Path, day: dt.date) -> None:
    """Write all files below *directory*."""
    files = {
        "man/man1/greenstalk-server.1": pages.server_page(day),
        "man/man1/greenstalkctl.1": pages.ctl_page(day),
        "bash-completion/completions/greenstalk-server": completion.server_bash(),
        "bash-completion/completions/greenstalkctl": completion.ctl_script("bash"),
        "zsh/vendor-completions/_greenstalk-server": completion.server_zsh(),
        "zsh/vendor-completions/_greenstalkctl": completion.ctl_script("zsh"),
        "fish/vendor_completions.d/greenstalk-server.fish": completion.server_fish(),
        "fish/vendor_completions.d/greenstalkctl.fish": completion.ctl_script("fish"),
    }
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)


if __name__ == "__main__":
    epoch = float(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    write(Path(sys.argv[1]), dt.datetime.fromtimestamp(epoch, dt.UTC).date())
