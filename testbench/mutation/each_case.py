"""Runs every case of a GoogleTest program in a process of its own, as SystemC wants it; ends with 1 at the first that fails.

each_case.py PROGRAM [--gtest_filter=...]
"""
import subprocess
import sys

listed = subprocess.run([*sys.argv[1:], "--gtest_list_tests"], capture_output=True, text=True, check=True).stdout
suite, cases = "", []
for line in listed.splitlines():
    name = line.partition("#")[0].strip()
    if line.startswith(" "):
        cases.append(suite + name)
    elif name.endswith("."):
        suite = name
if not cases:
    sys.exit("no case")
sys.exit(next((1 for case in cases if subprocess.run([sys.argv[1], f"--gtest_filter={case}"]).returncode != 0), 0))
