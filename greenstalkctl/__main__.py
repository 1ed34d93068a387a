"""`python -m greenstalkctl`."""

import sys

from greenstalkctl.cli import main

sys.exit(main())
