"""`python -m tests.attack`."""

import sys

from .campaign import main

sys.exit(main())
