"""Finds the package opd in the source tree, from any working directory."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "sw_reference" / "python"))
