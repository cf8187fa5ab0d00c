"""A leak report as a page, with its plots and pictures."""

from cutlayer.core.extras import require

require("audit")
