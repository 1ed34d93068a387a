"""`python -m greenstalk_server`."""

import sys

from greenstalk_server.cli import main

sys.exit(main())
