"""What the processes of a command tell the launcher that started it: one file a process, one JSON object a line.

  begin    a capture writes `journal`, to become `path`; a guard guards `model`
  end      that capture or guard has ended: of a capture `error` (null, or why its trace was not written) and `stopped`, of a guard
           its `summary`
  saved    `path`: what an earlier, killed run had left there
  refused  `text`: the command was ended before it trained, because it cannot be done as asked
  failed   `text`: the process trains, but without a capture or guard
  idle     `text`: why nothing of a process that imported torch was captured or guarded

Only the standard library is needed: this must work in the environment of any command.
"""
import json
import os
from pathlib import Path

ENVIRONMENT = "OPD_UNEDITED"  # JSON: `command` of opd, what `start` of its module auto takes, `folder` of the events, and `launch`


def settings():
    """What the launcher asked for."""
    return json.loads(os.environ[ENVIRONMENT])


def tell(event, **details):
    """Never fails: a launcher that hears nothing says so."""
    try:
        with open(Path(settings()["folder"]) / str(os.getpid()), "a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, **details}) + "\n")
    except (OSError, KeyError, ValueError):
        pass


def told(folder):
    """The events of all processes, each process's in their order."""
    found = []
    for file in sorted(Path(folder).iterdir()):
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:  # cut off: the process was killed, or the disk is full
                pass
    return found
