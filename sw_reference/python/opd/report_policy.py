"""The part of report.html on the policy of a replay (docs/policies.md): which one ran, what it commanded, what came of it."""
from __future__ import annotations

from opd.registers import Mode
from opd.report_parts import table, text


def section(summary: dict) -> str:
    """Nothing for a replay without a policy, or from before there were any."""
    policy = summary.get("policy")
    if not policy:
        return ""
    rows = []
    for entry in summary["traces"]:
        commands, modes = entry["policy"]["commands"], entry["modes"]
        told = ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in commands.items() if number)
        rows.append([text(entry["name"]), f"{sum(commands.values()):,}", told or "none", f"{100 * modes['outside_fast']:.2f}&nbsp;%",
                     *(f"{modes['incidents'][mode.name]:,}" for mode in Mode)])
    return ("<section><h2>Policy</h2>"
            f"<p class=\"note\"><code>{text(policy['file'])}</code>, class <code>{text(policy['class'])}</code>, SHA-256 "
            f"<code>{text(policy['sha256'])}</code>. It was asked once after each step; every path got its commands before the next.</p>" +
            table(["trace", "#commands", "~of these", "#outside FAST", *(f"#incidents met in {mode.name}" for mode in Mode)], rows) +
            '<p class="note"><i>Outside FAST</i>: completions whose operator was issued in STABLE or SAFE. An <i>incident</i> is an '
            "operator's first non-finite value, <i>met</i> in the mode that it was issued in.</p></section>")
