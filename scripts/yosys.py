"""Yosys as the scripts beside this file run it."""
import subprocess
import sys


def run_yosys(commands: list[str]) -> None:
    """Runs the commands in a process of its own: Yosys ends its process on an error, and what it says is long."""
    program = "import sys; from pyosys import libyosys as ys; d = ys.Design(); [ys.run_pass(c, d) for c in sys.argv[1:]]"
    result = subprocess.run([sys.executable, "-c", program, *commands], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        sys.exit("Yosys failed:\n" + "\n".join(result.stdout.splitlines()[-30:]))
