"""ColossalAI: a line for each skipped step, without its scale.

hpcaitech/ColossalAI, colossalai/zero/low_level/low_level_optim.py and zero/gemini/gemini_optimizer.py (step).
"""
from __future__ import annotations

import re

from opd.importers.logs.lines import Line
from opd.importers.logs.reading import OVERFLOW, Reading

NAME = "ColossalAI"
SPELLINGS = {"skipped step": "[05/06/24 07:08:09] INFO     colossalai - colossalai - INFO: Found overflow. Skip step"}

_SKIP = re.compile(r"Found overflow\. Skip step")


def read(line: Line) -> Reading | None:
    """The reading of a line of ColossalAI's, None for any other."""
    return Reading(OVERFLOW) if _SKIP.search(line.text) else None
