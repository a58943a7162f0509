"""What a guard exchanges between four ranks under DistributedDataParallel, and what that takes: one JSON object on standard output.

Four processes with one thread each, gloo over the loopback; the transformer of `opd capture --bench`, `key` probes. Every rank makes
a step of the bare run and one of the guarded run in turn, so that a busy machine is busy for both. Times are those of
rank 0, medians over the steps, and the least of them, which a busy machine spoils less. What it waits for in the guard's collectives
includes whatever keeps the other ranks.
"""
from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import environment  # noqa: F401  finds the package opd
import torch
import torch._dynamo  # noqa: F401  DistributedDataParallel imports it: once here, and not in each process
import torch.distributed as dist
from opd import guard
from opd.capture.benchmark import Model
from torch.nn.parallel import DistributedDataParallel

RANKS, STEPS, WARMUP = 4, 60, 10
LAYERS, WIDTH, HEADS, BATCH, TOKENS = 4, 128, 4, 4, 64
COUNTS = ("collectives", "sent_bytes", "received_bytes")


def train(rank: int) -> dict:
    ways = {}
    for name in ("bare", "guarded"):
        torch.manual_seed(0)
        model = DistributedDataParallel(Model(LAYERS, WIDTH, HEADS))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
        ways[name] = (model, optimizer, guard(model, optimizer, probes="key") if name == "guarded" else None)
    watched = ways["guarded"][2]
    torch.manual_seed(rank)
    taken: dict[str, list[float]] = {name: [] for name in (*ways, "bare_processor", "guarded_processor", "exchanging")}
    with watched:
        for i in range(WARMUP + STEPS):
            tokens = torch.randint(0, 256, (BATCH, TOKENS + 1))
            if i == WARMUP:
                first = watched.summary()
            for name, (model, optimizer, g) in ways.items():
                dist.barrier()
                waited = watched.summary()["waited_seconds"]
                begin, processor = time.perf_counter(), time.process_time()
                optimizer.zero_grad()
                loss = model(tokens)
                if g is not None:
                    g.step(loss)
                else:
                    loss.backward()
                    optimizer.step()
                taken[name].append(time.perf_counter() - begin)
                taken[f"{name}_processor"].append(time.process_time() - processor)
                if g is not None:
                    taken["exchanging"].append(watched.summary()["waited_seconds"] - waited)
        last = watched.summary()
    assert last["detached"] is None and last["stopped"] == 0, last
    return {"model": ways["bare"][0].module.text, "operators": last["operators"], "ranks": RANKS, "steps": STEPS,
            **{key: (last[key] - first[key]) / STEPS for key in COUNTS},
            "milliseconds": {name: {"median": round(1e3 * statistics.median(values[WARMUP:]), 3),
                                    "least": round(1e3 * min(values[WARMUP:]), 3)} for name, values in taken.items()}}


def main() -> int:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        pids = []
        for rank in range(RANKS):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
                    result = train(rank)
                    (Path(folder) / f"rank{rank}.json").write_text(json.dumps(result), encoding="utf-8")
                    status = 0
                finally:
                    os._exit(status)
            pids.append(pid)
        if any([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]):
            print("ranks_cost: a rank has failed", file=sys.stderr)
            return 1
        found = [json.loads((Path(folder) / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in range(RANKS)]
    print(json.dumps({**found[0], "other_ranks": {key: found[1][key] for key in COUNTS}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
