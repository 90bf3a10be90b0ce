"""`python -m coterie.cli`."""

import sys

from coterie.cli import main

sys.exit(main())
