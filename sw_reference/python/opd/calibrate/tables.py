"""The text of opd calibrate."""
from __future__ import annotations

from opd.calibrate.fields import ENGINES
from opd.device_config import DeviceConfig, is_float
from opd.evaluate.tables import columns
from opd.registers import CONFIG_RESET, PROFILES


def text(config: DeviceConfig, left_out: int) -> str:
    """What a calibration proposes and how sure that is. left_out: traces of folders or other splits that were not used."""
    found = config.calibration
    rate = found["false_alarms_per_1000_wanted"]
    runs = found["runs"]
    lines = [f"wanted: at most {rate:g} false alarms per 1000 probe-steps, warm-up included",
             f"healthy: {_count(len(runs), 'run')}, {sum(run['steps'] for run in runs):,} steps, "
             f"{found['probe_steps']:,} probe-steps" + (f" of {', '.join(found['kinds'])}" if found["kinds"] else "") +
             (f" ({found['probe_steps_not_judged']:,} from an operator's first non-finite value on are not judged)"
              if found["probe_steps_not_judged"] else "") +
             (f"; {_count(left_out, 'trace')} left out" if left_out else "")]
    for name, engine in found["engines"].items():
        lines += ["", f"engine {name}" + (" (decides)" if name == config.profile else "")]
        lines += _fields(name, engine) + _certainty(engine, rate)
    lines += ["", _gradient_norm(found)]
    decides = found["engines"][config.profile]
    lines.append("")
    if found["promised"]:
        lines.append(f"PROMISED: at most {rate:g} per 1000 probe-steps, {found['confidence'] * 100:g} % sure, for runs like "
                     "these")
    else:
        lines.append(f"NOT PROMISED: the runs cannot show a rate of {rate:g} per 1000 probe-steps")
        lines += [f"  {reason}" for reason in decides["not_promised_because"]]
    lines.append(f"on these runs opd replay counts {sum(run['replay_alarms'] for run in runs)} alarms with this file" +
                 (", operators of every kind together" if found["kinds"] else ""))
    return "\n".join(lines)


def _fields(name: str, engine: dict) -> list[str]:
    reset = {**CONFIG_RESET, **PROFILES[name]}
    units = {threshold.field: threshold.unit for threshold in ENGINES[name].thresholds}
    rows = [("field", "reset", "proposed", "")]
    for field, value in engine["fields"].items():
        rows.append((field, _number(field, reset[field]), _number(field, value), units.get(field, "")))
    return columns(rows, left=(0, 3))


def _certainty(engine: dict, rate: float) -> list[str]:
    flags = ", ".join(f"{flag} {alarms}" for flag, alarms in engine["raised_by_flag"].items())
    lines = [f"  alarms: {engine['alarms']}, {engine['alarms_per_1000']:.3g} per 1000" +
             (f" (samples with the flag: {flags})" if flags else "")]
    for flag in engine["flags_not_used"]:
        lines.append(f"  {flag} cannot be brought to {rate:g} per 1000: its weight is 0")
    upper = engine["upper_bound_runs_per_1000"]
    thresholds = engine["thresholds_set_by_samples"]
    lines.append(f"  at most, 95 % sure: {engine['upper_bound_samples_per_1000']:.3g} per 1000 if samples are independent "
                 f"({_count(thresholds, 'threshold')} set on them); "
                 + ("runs: one says nothing" if upper is None else f"{upper:.3g} over runs" +
                    (" (no alarm in any: no information)" if engine["alarms"] == 0 else "")))
    left = engine["leave_one_out"]
    if left is not None:
        bad = sum(alarms > 0 for alarms in left["alarms_by_run"])
        lines.append(f"  leave one run out: {left['alarms']} alarms, {left['alarms_per_1000']:.3g} per 1000, "
                     f"in {bad} of {len(left['alarms_by_run'])} runs")
    near = engine["near_limit"]
    if near["runs"]:
        alarms = sum(run["alarms"] for run in near["runs"])
        lines.append(f"  near-limit: {alarms} alarms in {_count(len(near['runs']), 'run')}, "
                     f"{near['alarms_per_1000']:.3g} per 1000 (not part of the rate)")
    return lines


def _gradient_norm(found: dict) -> str:
    if found["grad_norm_p90"] is None:
        return "clip threshold: no trace has a finite grad_norm"
    return (f"clip threshold: 90 % of the steps have a gradient norm of at most {found['grad_norm_p90']:.6g} "
            f"({found['grad_norm_steps']:,} steps of {_count(found['grad_norm_runs'], 'run')})")


def _number(field: str, value: float) -> str:
    return f"{value:.6g}" if is_float(field) else str(value)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
