"""`opd capture -- COMMAND`: runs a command with a capture in every Python process that it starts (opd.unedited.launch). Journals of
killed ones become traces when the command has ended, and the last lines say what there is, and if nothing, why."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from opd.capture.errors import BusyError, CaptureError, NoStepError
from opd.capture.journal import SUFFIX, is_busy
from opd.capture.recovery import recover
from opd.trace import Trace, TraceError
from opd.unedited import launch

NEEDED = ("numpy",)  # beside torch, in the environment of the command; what traces need is needed here only


def run(command: Sequence[str], path: Path, options: dict, model_class: str | None, inference: bool = False) -> int:
    """Runs the command; returns its exit status as a shell gives it (128 + n for signal n), or 2 when it was ended because a
    pattern matches nothing. Raises CaptureError when another capture writes to that path, OSError when it cannot be run."""
    journal = Path(f"{path.absolute()}{SUFFIX}")
    if is_busy(journal):
        raise BusyError(journal)
    asked = {"path": str(path.absolute()), "options": options, "model_class": model_class, "inference": inference}
    status, heard = launch.run("capture", command, asked, NEEDED)
    launch.say("capture", _report(heard))
    return launch.BAD_INPUT if any(event["event"] == "refused" for event in heard) else status


def _report(heard: Sequence[Mapping]) -> list[str]:
    """What became of each capture, then why others came to nothing."""
    ended = {event["path"]: event for event in heard if event["event"] == "end"}
    lines = [f"{event['path']}: {'the trace' if not event['path'].endswith(SUFFIX) else 'the journal'} of an earlier run that was "
             "killed" for event in heard if event["event"] == "saved"]
    begun = [event for event in heard if event["event"] == "begin"]
    outcomes = [_outcome(event, ended.get(event["path"])) for event in begun]  # makes the traces of killed processes
    lines += [line for event in begun for line in _in_words(Path(event["path"]))]
    lines += [event["bundle"] for event in ended.values() if event.get("bundle")] + outcomes
    for kind, text in (("refused", "the command was ended before it trained: "), ("failed", "no trace of a process: ")):
        lines += [text + event["text"] for event in heard if event["event"] == kind]
    if not lines:
        idle = sorted({event["text"] for event in heard if event["event"] == "idle"})
        lines = [f"no trace: no process of the command trained a torch module: {text}"
                 for text in idle or ["none imported torch, or it was killed before it could train"]]
    return list(dict.fromkeys(lines))


def _outcome(begun: Mapping, end: Mapping | None) -> str:
    """What became of one capture. end: what its process told last; None when it was killed."""
    path, journal = Path(begun["path"]), Path(begun["journal"])
    how = "" if end is not None else "the process was killed, or left without its end; "
    if end is None or end["error"] is not None:
        try:
            recover(journal, path)
        except NoStepError:
            journal.unlink(missing_ok=True)
            return f"{path}: no trace: {how}no step was recorded"
        except BusyError:
            return f"{journal}: a process that the command has left running still writes it; opd info {journal} shows what it holds"
        except (CaptureError, TraceError, OSError) as error:
            return (f"{path}: no trace: {how}{error}; its steps are in {journal}: make room, then opd capture --recover {journal}")
    if end is not None and not end["steps"]:
        return f"{path}: no trace: {end['stopped'] or 'the model was called, but no step of an optimizer followed'}"
    try:
        return f"{path}: {how}{describe(Trace.read(path))}"
    except TraceError as error:
        return str(error)


def _in_words(path: Path) -> list[str]:
    """The incident of a trace in a sentence, as opd triage says it; nothing without one, or without what that needs."""
    try:
        from opd.triage import triage

        found = triage(Trace.read(path))
        return [f"{path}: {found.sentence()}"] if found.pages else []
    except (TraceError, OSError, ImportError):
        return []


def describe(trace: Trace) -> str:
    """Steps, what ended the capture, and the incident of a captured trace, in one line."""
    manifest = trace.manifest
    parts = [f"{len(trace.step)} steps {trace.step[0]}..{trace.step[-1]}"]
    if "unfinished_step" in manifest:
        parts[0] += f", step {manifest['unfinished_step']} unfinished"
    skipped = manifest.get("no_optimizer_step", [])
    if skipped:
        parts[0] += f", {len(skipped)} without a step of the optimizer"
    if "stopped" in manifest:
        parts.append(f"the capture ended before the run did: {manifest['stopped']}")
    if "incident" in manifest:
        parts += [text for key in ("text", "advice") if (text := manifest["incident"].get(key))]
    elif trace.first_bad_op is not None:
        parts.append(f"step {trace.first_bad_step}: {trace.first_bad_op} is the first that is non-finite")
    if "operands" in manifest:
        parts.append(_operands(trace))
    return "; ".join(parts)


def _operands(trace: Trace) -> str:
    """Which operands a captured trace holds, and which it does not."""
    asked, steps = trace.manifest["operands"], trace.operand_step
    parts = ["no operands are kept" if steps is None else
             f"operands of {len(trace.operands)} operators in {len(steps)} steps {steps[0]}..{steps[-1]}"]
    parts += [asked["lost"]] if "lost" in asked else []
    return "; ".join(parts + [f"operands of {name}: {why}" for name, why in asked.get("missing", {}).items()])
