"""`python -m stepwell`: the command line without an installed script."""

import sys

from stepwell.cli.main import main

sys.exit(main())
