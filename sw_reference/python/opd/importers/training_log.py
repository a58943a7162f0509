"""Training logs as text: what Megatron, DeepSpeed, fairseq and NVIDIA's GNMT print, and MLPerf's own lines among them.

Lines that are known (everything else in a log is other output and is skipped):

    Megatron   " iteration  31214/ 115311 | ... lm loss: 2.19E+00 | loss scale: 1.0 | grad norm: 0.242 | ..."
               NVIDIA/Megatron-LM, megatron/training.py (training_log)
    DeepSpeed  "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768" or "..., but
               hysteresis is 2. Reducing hysteresis to 1"; microsoft/DeepSpeed, deepspeed/runtime/zero/stage_1_and_2.py,
               deepspeed/runtime/fp16/loss_scaler.py; with the "step:10, loss:3.6" that the loop around it prints
    fairseq    "| epoch 001:   1000 / 1637 loss=7.6, ... num_updates=996, lr=0.0019, gnorm=62144.2, ..., loss_scale=4.0",
               "| epoch 001 | loss 6.6 | ... | num_updates 1631 | lr 0.0015 | gnorm 39648.9 | ... | loss_scale 2.0" and
               "| WARNING: overflow detected, setting loss scale to: 64.0"; facebookresearch/fairseq v0.6..v0.12,
               fairseq/logging/progress_bar.py, fairseq/trainer.py
    GNMT       "0: TRAIN [0][150/3416] ... Loss/tok 7.79 (8.2) ... LR 6.18e-04" and "0: Skipped batch, new scale: 256.0";
               mlcommons/training_results_v0.6, NVIDIA gnmt, seq2seq/train/fp_optimizer.py. Every rank prints the latter: the
               first rank to print one is read
    MLPerf     ":::MLLOG {json}" (mlperf_logging/mllog/mllog.py), ":::MLL time key: {json}" (v0.6): values whose key, or key
               inside, is a loss, gradient norm, learning rate or loss scale, at metadata "step", "iteration" or "samples_count"
"""
from __future__ import annotations

import json
import re

from opd.importers.names import SCALAR_OF, key
from opd.importers.run import ImportedRun
from opd.importers.scalars import Row, read_rows
from opd.importers.source import COPY_AGAIN, Source

NAME = "training-log"
WHAT = "training log (MLPerf, Megatron, DeepSpeed, fairseq, GNMT)"

_REAL = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|inf|nan)"
_MEGATRON = re.compile(r"\biteration\s+(\d+)\s*/\s*\d+ \|")
_PAIR = re.compile(rf"\|\s*([A-Za-z][A-Za-z -]*?):\s*({_REAL})\s*(?=\||$)")
_DEEPSPEED = re.compile(rf"OVERFLOW! Rank (-?\d+) Skipping step\. Attempted loss scale: ({_REAL}), "
                        rf"(?:reducing to ({_REAL})(?:\s|$)|but hysteresis is \d+\. Reducing hysteresis to \d)")
_LOOP = re.compile(rf"(?:^|\s)step:\s*(\d+),?\s+loss:\s*({_REAL})(?=[\s,]|$)")
_FAIRSEQ = re.compile(r"\| epoch \d+(:\s+\d+ / \d+ | \| )")
_FAIRSEQ_END = re.compile(rf"wall[= ]{_REAL}\s*$")
_FAIRSEQ_PAIR = re.compile(rf"(?:^|[\s,|])([a-z_]+)[= ]({_REAL})(?=[\s,|]|$)")
_FAIRSEQ_OVERFLOW = re.compile(rf"overflow detected, setting loss scale to: ({_REAL})\s*$")
_GNMT = re.compile(rf"(?:(\d+): )?TRAIN \[(\d+)\]\[(\d+)/\d+\].*?Loss/tok ({_REAL}) .*?LR ({_REAL})")
_GNMT_SKIP = re.compile(rf"(?:(\d+): )?Skipped batch, new scale: ({_REAL})\s*$")
_MLLOG = re.compile(r":::MLLOG (.*)$")
_MLL = re.compile(r":::MLL (\S+) (\S+?): (.*)$")
# How these lines begin. One that begins so and does not go on like one of them is cut off or damaged.
_BEGINNINGS = (r":::MLL(?:OG)? ", r"OVERFLOW! Rank ", r"overflow detected, setting loss scale", r"\| epoch \d+(?::| \|)",
               r"\bTRAIN \[\d+\]\[", r"Skipped batch, new scale", r"\biteration\s+\d+\s*/\s*\d+ \|",
               r"(?:^|\s)step:\s*\d+,?\s+loss:")
_BEGUN = re.compile("|".join(_BEGINNINGS))
_KNOWN = re.compile("|".join(_BEGINNINGS).encode(), re.MULTILINE)


def sniff(source: Source) -> int:
    """2 for a log with one of the lines above, 0 for anything else."""
    return 2 if _KNOWN.search(source.data) and not source.data.startswith(b"{") else 0


def read(source: Source) -> ImportedRun:
    """The log. Raises ImportFault with the line."""
    run = ImportedRun()
    reader = _Reader(source)
    rows = []
    for number, line in source.lines():
        if not _BEGUN.search(line):
            continue
        row = reader.row(number, line)
        if row is not None:
            rows.append(row)
    if not rows:
        source.fail(None, "holds no line with a loss, gradient norm or loss scale",
                    "give the log of a training run that prints them")
    read_rows(rows, run)
    run.model, run.framework = reader.model, " ".join(sorted(reader.writers))
    for counter in sorted(reader.counters & {"samples_count", "epoch_num"}):
        run.assumptions.append(f"MLPerf lines count by {counter}: that is the step")
    if reader.other_ranks:
        run.assumptions.append(f"{reader.other_ranks} lines of other ranks left out")
    return run


class _Reader:
    def __init__(self, source: Source):
        self.source = source
        self.model = ""
        self.writers: set[str] = set()
        self.counters: set[str] = set()   # metadata that MLPerf lines count by
        self.other_ranks = 0
        self.rank = None   # the first that prints an overflow
        self.updates = None   # num_updates of fairseq's line before

    def row(self, number: int, line: str) -> Row | None:
        """The row of a line that begins like a known one; None when it tells nothing that a trace holds."""
        if ":::MLL" in line:
            return self._mlperf(number, line)
        if found := _FAIRSEQ_OVERFLOW.search(line):
            return self._of("fairseq", Row(number, values={"scale_after": float(found[1])}, overflow=True))
        if found := _DEEPSPEED.search(line):
            if self._is_other_rank(found[1]):
                return None
            values = {"scale_attempted": float(found[2]), "scale_after": float(found[3] or found[2])}
            return self._of("DeepSpeed", Row(number, values=values, overflow=True))
        if found := _GNMT_SKIP.search(line):
            if self._is_other_rank(found[1]):
                return None
            return self._of("GNMT", Row(number, values={"scale_after": float(found[2])}, overflow=True))
        if found := _GNMT.search(line):
            if found[1] not in (None, "0"):
                self.other_ranks += 1
                return None
            return self._of("GNMT", Row(number, int(found[3]), int(found[2]), {"loss": float(found[4]), "lr": float(found[5])}))
        if found := _LOOP.search(line):
            return self._of("training loop", Row(number, int(found[1]), None, {"loss": float(found[2])}))
        if found := _FAIRSEQ.search(line):
            return self._fairseq(number, line, is_average=found[1] == " | ")
        if found := _MEGATRON.search(line):
            values = {SCALAR_OF[key(name)]: float(text) for name, text in _PAIR.findall(line) if key(name) in SCALAR_OF}
            if not line.rstrip().endswith("|"):
                self.source.fail(number, "an iteration line that does not end with \"|\"", COPY_AGAIN)
            return self._of("Megatron", Row(number, int(found[1]), values=values))
        self.source.fail(number, "begins like a line of a training log and does not go on like one", COPY_AGAIN)

    def _of(self, writer: str, row: Row) -> Row:
        self.writers.add(writer)
        return row

    def _is_other_rank(self, rank: str | None) -> bool:
        self.rank = self.rank if self.rank is not None else rank
        other = rank != self.rank
        self.other_ranks += other
        return other

    def _fairseq(self, number: int, line: str, is_average: bool) -> Row | None:
        if "valid on" in line or "valid_loss" in line:
            return None
        values, step = {}, None
        for name, text in _FAIRSEQ_PAIR.findall(line):
            if name == "num_updates" and text.isdigit():
                step = int(text)
            elif key(name) in SCALAR_OF:
                values[SCALAR_OF[key(name)]] = float(text)
        if step is None or not _FAIRSEQ_END.search(line):
            self.source.fail(number, "a fairseq line without num_updates, or cut off before wall", COPY_AGAIN)
        is_repeated = is_average and step == self.updates   # the average of an epoch whose last step has its own line
        self.updates = step
        return None if is_repeated else self._of("fairseq", Row(number, step, values=values))

    def _mlperf(self, number: int, line: str) -> Row | None:
        self.writers.add("MLPerf")
        def damaged(wrong):
            self.source.fail(number, f"an MLPerf line {wrong}", COPY_AGAIN)
        found = _MLLOG.search(line) or _MLL.search(line)
        if not found:
            damaged("without time, key and value")
        try:
            content = json.loads(found[found.lastindex])
        except ValueError:
            damaged("whose value is not valid JSON")
        if not isinstance(content, dict) or "value" not in content or not isinstance(content.get("metadata"), dict):
            damaged("without value and metadata")
        name = found[2] if found.lastindex == 3 else content.get("key")
        value, metadata = content["value"], content["metadata"]
        if name == "submission_benchmark":
            self.model = str(value)
        items = value.items() if isinstance(value, dict) else [(str(name), value)]
        values = {SCALAR_OF[key(k)]: float(v) for k, v in items
                  if key(k) in SCALAR_OF and isinstance(v, (int, float)) and not isinstance(v, bool)}
        counter = next((k for k in ("step", "step_num", "iteration", "iteration_num", "samples_count", "epoch_num")
                        if type(metadata.get(k)) is int), None)
        if not values or counter is None:
            return None
        self.counters.add(counter)
        return Row(number, metadata[counter], values=values)
