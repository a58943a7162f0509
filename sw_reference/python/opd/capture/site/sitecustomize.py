"""Put on PYTHONPATH by `opd capture -- COMMAND` (opd.capture.launcher); run by every Python process at its start.

Does nothing until the process imports torch, then starts the capture. The sitecustomize.py that would have run without this
one runs as well.
"""
import importlib.machinery
import importlib.util
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


class AfterTorch:
    """A finder that finds torch as usual and starts the capture when its import is complete."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        exec_module = spec.loader.exec_module

        def exec_and_start(module):
            exec_module(module)
            from opd.capture.auto import AutoCapture
            AutoCapture(**json.loads(os.environ["OPD_CAPTURE"]))

        spec.loader.exec_module = exec_and_start
        return spec


def run_the_other():
    elsewhere = [path for path in sys.path if os.path.abspath(path or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


run_the_other()
if "OPD_CAPTURE" in os.environ:
    sys.meta_path.insert(0, AfterTorch())
