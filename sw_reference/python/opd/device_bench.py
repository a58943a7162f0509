"""What a completion costs the training process, by device: `python -m opd.device_bench`.

Every kind gets the same steps: all operators once, finite and far from the limit (quiet), or non-finite, so that each makes an event or
escalates (events). It is processor time that is measured, the best of several rounds. clocks: of the device, everything included:
completions, register accesses, and the mode of every operator read back.
"""
from __future__ import annotations

import time

import numpy as np

from opd.arguments import Parser
from opd.device import KINDS, Device
from opd.reference import ReferenceMissing


def measure(kind: str, operators: int, steps: int, rounds: int, nonfinite: int) -> tuple[float, float]:
    """Seconds and clocks of a completion. Raises ReferenceMissing, ValueError."""
    device = Device(kind, operators)
    op, format = np.arange(operators, dtype=np.uint16), np.zeros(operators, np.uint8)
    max_mag, elements = np.full(operators, 0x3C00, np.uint32), np.full(operators, 4096, np.uint32)
    bad = np.full(operators, nonfinite, np.uint32)
    best, clocks = float("inf"), 0
    for number in range(rounds):
        start = time.process_time()
        clocks = sum(device.step(number * steps + i, op, format, max_mag, elements, bad).cycles for i in range(steps))
        best = min(best, time.process_time() - start)
    device.close()
    return best / (steps * operators), clocks / (steps * operators)


def main(argv: list[str] | None = None) -> None:
    """Prints the table."""
    parser = Parser(prog="python -m opd.device_bench", description=__doc__.partition("\n")[0])
    parser.add_argument("--operators", type=int, default=64)
    parser.add_argument("--steps", type=int, default=50, help="of a round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(argv)
    try:
        print(f"{options.operators} operators, steps of {options.operators} completions")
        print(f"{'':10}{'us, quiet':>12}{'clocks':>8}{'us, events':>12}{'clocks':>8}")
        for kind in KINDS:
            cells = [measure(kind, options.operators, options.steps, options.rounds, nonfinite) for nonfinite in (0, 1)]
            print(f"{kind:10}" + "".join(f"{seconds * 1e6:12.2f}{clocks:8.1f}" for seconds, clocks in cells))
    except (ReferenceMissing, ValueError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
