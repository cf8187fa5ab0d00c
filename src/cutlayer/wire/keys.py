"""The form of an API key, which the vendor makes and the customer keeps out of files."""

from __future__ import annotations

import re

API_KEY = re.compile(r"cl_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
"""Its public part, by which it is revoked, and its secret one."""
