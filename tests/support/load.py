"""Whether this machine has more to do than it can: what a test measures is not what it would be alone."""

from __future__ import annotations

import os

IS_LOADED = os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1)
