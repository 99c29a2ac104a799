"""``python -m branchkit`` is the command line."""

import sys

from branchkit.cli import main

sys.exit(main())
