"""What to do, by the kind of operator, the sub-step and the class of an incident: of one step replayed (opd.localise), and of the history
of a run (opd.triage)."""
from __future__ import annotations

from collections.abc import Sequence

from opd.localise.finding import DATA, HARDWARE, NONE, NUMERIC

# Roles of operators that the words know; everything else is "other".
LOGITS, SOFTMAX, ATTENTION, NORM, LINEAR, HEAD, LOSS, OTHER = "logits", "softmax", "attention", "norm", "linear", "head", "loss", "other"
SQUARES, RESIDUAL = "sum of squares", "residual"

# Kinds of incidents that a history shows (docs/triage.md).
GROWTH, LAYERS, JUMP, RATE_JUMP = "growth over steps", "growth across layers", "jump without a precursor", "jump of a learning rate"
ACCUMULATOR, CLIPPED, FP8_SCALE = "overflow inside an accumulator", "silent saturation", "FP8 scale"
LOSS_SCALE, COLLAPSE, FLIP = "loss scale too large", "loss-scale collapse", "isolated jump, as of a flipped bit"
MASKED, VARIANCE, BAD_DATA, UNSEEN = "fully masked softmax row", "row without variance", "non-finite input data", "no probe shows it"

_EPSILON = "Give the norm an epsilon above 0 that its format holds (1e-5; below 6e-8 FP16 has 0): a row without variance divides by it."
_CONSTANT_ROW = "Look at why the row is constant: dead activations, a batch of padding."
_BOUND = "Bound what this operator reads: a norm or a cap before it; no format has a wider range."
_FP8 = ("Scale the operand before its cast to FP8 by the largest magnitude of the last steps (delayed scaling) or of this tensor, and keep "
        "a margin of a power of two.")


def group_words(rates: Sequence[dict], parameters: Sequence[str]) -> str:
    """The learning rate of the parameters' group, as "the learning rate of group 1 (0.001, with block.2.attn.qkv.weight)"."""
    for number, group in enumerate(rates):
        name = next((name for name in parameters if name in group["parameters"]), None)
        if name is not None:
            return f"the learning rate of parameter group {number} ({group['lr']:.3g} now; it has {name})"
    return f"the learning rate of {parameters[0]}" if parameters else "the learning rate"


def advice(kind: str, role: str, substep: str | None, rates: Sequence[dict], parameters: Sequence[str], loss_scale: float,
           masked_row: bool) -> tuple[str, ...]:
    """Sentences, the first one the likeliest remedy. parameters: of the operator, or of the layers before it."""
    if kind == NONE:
        return ("Give the batch, the weights and the random states from before the step; they are not those of the incident, or it lies "
                "outside of loss and backward: "
                "in the optimizer's step.",)
    if masked_row:
        return ("Leave at least one column visible in every row (the diagonal of a causal mask), or drop rows of padding before the "
                "softmax.",
                "Or fill with a large finite number of the format instead of -Inf; the row is then uniform and has to be left out of "
                "the loss.")
    if kind == DATA:
        return ("Check the sample before it reaches the model (isfinite, and a bound that the format of the first operator holds), and "
                "drop or repair it.",
                "Look into what made it: division by a standard deviation of 0, a logarithm of 0, an unscaled column.")
    if kind == HARDWARE:
        if substep == "weight":
            return ("Go back to a checkpoint in which this element is in range; running on trains around a wrong weight.",
                    "Test the memory of that device (ECC counters, a memory test) before it is used again.")
        return ("Repeat the step on another device; where it is clean there, take this one out and test it.",
                "Where it is not, look for what is not deterministic: atomic sums, uninitialised memory (torch.empty), races between "
                "streams.")
    if substep == "loss scale":
        return (f"Lower the loss scale ({loss_scale:g} now): a GradScaler skips this step and halves it; a scale set by hand needs the "
                "same.",
                "Where it is at its floor already, clip the gradients or train this part in BF16.")
    rate = group_words(rates, parameters)
    lower = f"Lower {rate}, or warm it up longer: the weights before this operator have grown."
    if substep == "derivative":
        return ("Keep the argument away from where the derivative is infinite: an epsilon under the root or in the denominator, a clamp "
                "before the logarithm.", lower)
    if role in (LOGITS, ATTENTION):
        return ("Normalise queries and keys (QK normalisation), or scale the queries by 1/sqrt(d) before the product, not the logits "
                "behind it.",
                "Or keep this product in FP32 or BF16: its sum fits, the cast does not.", lower)
    if role == SOFTMAX:
        return ("Subtract the row's maximum before the exponential (softmax does, exp by hand does not), and cap the logits.", lower)
    if role == NORM:
        if substep in ("scale", "rsqrt", "reciprocal", "normalise"):
            return (_EPSILON, _CONSTANT_ROW)
        if substep == "gain":
            return (f"Bound the gain, or take weight decay on it; lower {rate}.",)
        return ("Compute the norm's square and mean in FP32 (x.float()), or divide the row by its largest magnitude first.", lower)
    if role == SQUARES:
        return ("Add the squares up in FP32 (x.float().square()), or divide the row by its largest magnitude first: what overflows is the "
                "sum, its operands fit.", lower)
    if role == RESIDUAL:
        return ("Start the residual branches smaller (their last weights times 1/sqrt(2 * layers)), or normalise before each branch.", lower)
    if role == HEAD:
        return ("Compute the logits of the output in FP32 (out of autocast), with a cap or a z-loss on them.", lower)
    if role == LOSS:
        return ("Compute the loss in FP32, from logits in FP32; prefer cross_entropy on logits to a logarithm of probabilities.", lower)
    if role == LINEAR:
        return ("Keep this layer in BF16, or normalise its input.", lower)
    return ("Keep this operator in BF16 or FP32.", lower)


def history_advice(kind: str, role: str, format: str, rate: str, loss_scale: float, is_stored: bool = False) -> tuple[str, ...]:
    """Sentences for an incident of which the history is known, the first one the likeliest remedy. kind: one of those above; format: of the
    operator; rate: the learning rate in question, as group_words says it; loss_scale: 1 for none; is_stored: what a flipped bit changed stays."""
    by_role = advice(NUMERIC, role, None, (), (), loss_scale, False)
    if format in ("FP32", "BF16"):  # the widest range there is
        by_role = tuple(sentence for sentence in by_role if not sentence.startswith(("Keep this", "Or keep this"))) or (_BOUND,)
        by_role = (_BOUND, *by_role) if by_role[0].startswith("Lower ") else by_role
    narrow = (_FP8,) if format in ("E4M3", "E5M2") else ()
    if kind == RATE_JUMP:
        return (f"Take the jump of {rate} back, or spread it over a warm-up of some hundred steps.",
                "Announce it where it is meant: the guard does, and the device then widens its thresholds for a while.", *narrow, *by_role[:1])
    if kind == LOSS_SCALE:
        return advice(NUMERIC, role, "loss scale", (), (), loss_scale, False)
    if kind == COLLAPSE:
        return ("Look at the forward pass and the weights, not at the scale: a scale that only falls is not what overflows.",
                "Stop before it reaches its floor, and go back to the last state in which it still rose.")
    if kind == FLIP:
        return advice(HARDWARE, role, "weight" if is_stored else None, (), (), loss_scale, False)
    if kind == MASKED:
        return advice(NUMERIC, SOFTMAX, None, (), (), loss_scale, True)
    if kind == VARIANCE:
        return (_EPSILON, _CONSTANT_ROW)
    if kind == BAD_DATA:
        return advice(DATA, role, None, (), (), loss_scale, False)
    if kind == UNSEEN:
        return ('Watch more of it: probes="output" shows the module where it begins, probes="all" the backward pass too.',
                "Compute the loss in FP32, from logits in FP32.")
    if kind == LAYERS:
        return ("Start the residual branches smaller (their last weights times 1/sqrt(2 * layers)), or normalise before each branch.",
                *by_role[:1])
    if kind == ACCUMULATOR:
        return advice(NUMERIC, SQUARES if role in (SQUARES, OTHER) else role, None, (), (), loss_scale, False)[:1]
    lower = f"Lower {rate}, or warm it up longer." if rate else "Lower the learning rate, or warm it up longer."
    return (*narrow, *(sentence for sentence in by_role if not sentence.startswith("Lower ")), lower)
