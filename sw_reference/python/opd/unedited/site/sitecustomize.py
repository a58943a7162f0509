"""Put on PYTHONPATH by `opd capture -- COMMAND` and `opd guard -- COMMAND` (opd.unedited.launch); run by every Python process at its start.

Does nothing until the process imports torch, then starts the capture or guard; when that fails, for instance because the environment lacks
NumPy, it says so and the process goes on. The sitecustomize.py that would have run without this one runs as well.
"""
import importlib
import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


class AfterTorch:
    """A finder that finds torch as usual and starts what was asked for when its import is complete."""

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
            start_asked()

        spec.loader.exec_module = exec_and_start
        return spec


def start_asked():
    name = "capture"
    try:
        from opd.unedited import events
        asked = events.settings()
        name = asked["command"]
        importlib.import_module("opd.%s.auto" % name).start(asked)
    except Exception as error:  # whatever it is: the run goes on
        why = "%s: %s" % (type(error).__name__, error)
        if isinstance(error, ImportError):
            missing = (getattr(error, "name", None) or "").split(".")[0] or "a package"
            why = "%s cannot be imported by %s; install it there: pip install %s" % (missing, sys.executable, missing)
        sys.stderr.write("opd %s: no %s, the run goes on: %s\n" % (name, name, why))
        try:
            from opd.unedited import events
            events.tell("failed", text=why)
        except Exception:
            pass


def run_the_other():
    elsewhere = [path for path in sys.path if os.path.abspath(path or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


run_the_other()
if "OPD_UNEDITED" in os.environ:
    sys.meta_path.insert(0, AfterTorch())
