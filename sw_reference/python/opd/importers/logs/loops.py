"""Lines of hand-written training loops and of tools that print "name: value" pairs: a step or an epoch, and a loss or a
norm.

The best known of them: pytorch/examples (mnist/main.py, imagenet/main.py), pytorch/tutorials (beginner_source/blitz/
cifar10_tutorial.py, basics/optimization_tutorial.py), facebookresearch/detectron2 (detectron2/utils/events.py,
CommonMetricPrinter), pytorch/vision (references/classification/utils.py, MetricLogger, from facebookresearch/deit),
huggingface/pytorch-image-models (train.py), karpathy/llm.c (train_gpt2.cu) and build-nanogpt, Lightning-AI/litgpt
(litgpt/pretrain.py), EleutherAI, tensorflow/estimator (basic_session_run_hooks.py), mosaicml/composer
(composer/loggers/console_logger.py), keras (TerminateOnNaN).
"""
from __future__ import annotations

import math
import re

from opd.importers.logs.lines import Line
from opd.importers.logs.metrics import EVALUATION as EVALUATION_WORD
from opd.importers.logs.metrics import Metric, choose, field_of, find, whole
from opd.importers.logs.reading import EPOCH, EVALUATION, MARK, ROW, Reading, torn, too_long
from opd.importers.logs.suspects import is_code, is_setting, without_paths

NAME = "training loop"
SPELLINGS = {
    "step and loss": "step:20, loss:2.5",
    "step, blanks": "step 20 loss 2.5",
    "step of all": "Step 20/1000 | loss=2.5 | grad_norm=1.25 | lr=1.0e-4",
    "step in brackets": "[step 20] train loss: 2.5, gradient norm: 1.25",
    "iteration": "Iteration 20: loss = 2.5",
    "tensor": "iteration 20 loss: tensor(2.5000, device='cuda:0', grad_fn=<NllLossBackward0>)",
    "epoch and step": "Epoch [2/5], Step [20/100], Loss: 2.5000",
    "epoch, step, rank": "Time: 2024-05-06 07:08:09, Epoch: 1, Step: 20, Rank: 0, loss = 2.5",
    "pytorch/examples, MNIST": "Train Epoch: 2 [640/60000 (1%)]\tLoss: 2.500000",
    "pytorch/examples, ImageNet": "Epoch: [2][  20/5005]\tTime  0.300 ( 0.400)\tData  0.000 ( 0.100)\tLoss 2.5000e+00 (2.7500e+00)\tAcc@1 "
                                  "  0.39 (  0.20)",
    "PyTorch tutorial, CIFAR": "[2,  2000] loss: 2.500",
    "PyTorch tutorial, quick start": "loss: 2.500000  [ 6400/60000]",
    "MetricLogger": "Epoch: [2]  [  20/1251]  eta: 0:10:00  lr: 0.000100  loss: 2.5000 (2.7500)  time: 0.5000  data: 0.0100  max mem: 1000",
    "timm": "Train: 2 [  20/1251 (  2%)]  Loss: 2.500 (2.75)  Time: 0.5s, 100.00/s  LR: 1.000e-04  Data: 0.010 (0.010)",
    "detectron2": "[05/06 07:08:09 d2.utils.events]:  eta: 0:10:00  iter: 20  total_loss: 2.5  loss_cls: 1.5  loss_box_reg: 1  time: "
                  "0.5000  data_time: 0.0100  lr: 0.00125  max_mem: 2000M",
    "llm.c": "step   20/18865 | loss 2.500000 (+nanz)| norm 1.2500 (+nanz)| lr 8.57e-07 | 1000.00 ms | 50.0% bf16 MFU | 100 tok/s",
    "build-nanogpt": "step    20 | loss: 2.500000 | lr 6.0e-04 | norm: 1.2500 | dt: 100.00ms | tok/sec: 1000.00",
    "litgpt": "Epoch 1 | iter 20 step 5 | loss train: 2.500, val: n/a | iter time: 100.00 ms (step) remaining time: 0:01:00",
    "TensorFlow estimator": "INFO:tensorflow:loss = 2.5, step = 20 (5.2 sec)",
    "dict behind the step": "Step 20/100: {'grad_norm': 1.25, 'Loss/train_loss': 2.5}",
    "dict in a line": "INFO:root:{\"step\": 20, \"loss\": 2.5, \"grad_norm\": 1.25}",
    "global step": "07:08:09 | global_step=20 | train/loss=2.5 | train/lr=1e-4",
    "update": "update 20: loss 2.5, gnorm 1.25",
    "epochs only": "Epoch 3/10: train loss 2.5, val loss 2.75",
    "a loss alone": "loss: 2.5",
    "loss is nan": "Loss is nan, stopping training",
    "TerminateOnNaN": "Batch 20: Invalid loss, terminating training",
    "detectron2, NaN": "FloatingPointError: Loss became infinite or NaN at iteration=20!",
    "heading": "[batch=20/1000]:",
    "heading with the epoch": "[step=20/1000,epoch=0]",
    "heading by a logger": "2024-01-02 03:04:05.678 host:0 olmo.train:960 INFO [step=20/1000,epoch=0]",
    "heading of an epoch": "Epoch 3/10",
    "summary of wandb": "wandb:        train/loss 2.5",
}

_COUNT = r"[\"']?\s*[:=#]?\s*[\[(]?\s*(\d+)(?![\w.]*[.\d%]|\w)(?:\s*(?:/|of)\s*(\d+))?"
_STEP = {name: re.compile(rf"(?i)(?<![\w./-]){pattern}(?![a-z]){_COUNT}") for name, pattern in (
    ("global step", r"(?:global|train(?:ing)?|total|optimizer)?[ _/]?(?:global|optimizer)[ _]?step"),
    ("iteration", r"(?:train(?:ing)?[ _/])?(?:iteration|iter|it)s?"),
    ("step", r"(?:train(?:ing)?[ _/])?steps?"),
    ("update", r"(?:num_)?updates?"),
    ("batch", r"(?:train(?:ing)?[ _/])?(?:batch|minibatch|mini-batch)(?:[ _]?(?:idx|index|number|no))?"))}
_EPOCH = re.compile(rf"(?i)(?<![\w./-])(?:train(?:ing)?[ _])?(?:epoch|ep)s?(?![a-z]){_COUNT}")
_PLACES = (   # epoch, step within it, length of it
    re.compile(r"(?i)\bepoch:?\s*\[?\s*(\d+)\]?(?:\s*/\s*\d+\]?)?\s*\[\s*(\d+)\s*/\s*(\d+)"),
    re.compile(r"(?i)^train: (\d+) \[\s*(\d+)\s*/\s*(\d+)"),
    re.compile(r"^\[\s*(\d+),\s+(\d+)\] loss()"),
    re.compile(r"^\[\s*(\d+)\s*/\s*\d+\]\[\s*(\d+)\s*/\s*(\d+)\]"))
_SAMPLES = re.compile(r"\[\s*(\d+)\s*/\s*(\d+)\s*\]\s*$")
_HEADING = re.compile(
    r"(?i)^\W*(?:global[ _]?step|step|iteration|iter|batch)\W{0,3}(\d+)(?:\s*(?:/|of)\s*\d+)?(?:,\s*epoch\W\d+)?\W*$")
_LOGGED_HEADING = re.compile(r"(?i)\s\[(?:step|batch|iter)=(\d+)/\d+(?:,\s*epoch=\d+)?\]:?$")   # whatever the logger puts in front
_EPOCH_HEADING = re.compile(r"(?i)^\W*epoch:?\s+(\d+)(?:\s*(?:/|of)\s*\d+)?\W*$")
_BAD = r"(?:nan|inf(?:inity|inite)?|not finite|non-?finite)"
_BAD_LOSS = re.compile(rf"(?i)(?<!['\"\w.])loss(?:es)?(?: value)?"
                       r"(?: (?:is|are|was|became|becomes|went|turned(?: into)?|contains|hit|reached|got))?"
                       rf"[ :=(]{{1,3}}(?:to |a |now )?(?:{_BAD}[ /](?:or )?)?{_BAD}\b|"
                       rf"\b{_BAD}(?:(?: or |/){_BAD})? (?:train(?:ing)? )?loss(?:es)?\b")
_BROKEN = re.compile(r"(?i)\bloss[\"']?\s*[:=]\s*(?:$|[-+.\d*#?\ufffd]\S*)")
_INVALID = re.compile(r"\bBatch (\d+): Invalid loss, terminating training")
_TELLS = re.compile(r"(?i)loss|norm")


def read(line: Line) -> Reading | None:
    """The reading of a line with a loss or a gradient norm, None for any other."""
    text = line.text
    if found := _INVALID.search(text):
        return Reading(ROW, {"loss": math.nan}, whole(found[1]))
    if found := _HEADING.match(text) or _LOGGED_HEADING.search(text):
        step = whole(found[1])
        return None if step is None else Reading(MARK, step=step)
    if found := _EPOCH_HEADING.match(text):
        return None if (epoch := whole(found[1])) is None else Reading(EPOCH, epoch=epoch)
    if not _TELLS.search(text) or is_setting(text) or is_code(text):
        return None
    text = without_paths(text)
    metrics = [metric for metric in find(text) if field_of(metric.name)]
    training = [metric for metric in metrics if not _is_evaluation(metric, text)]
    if text.startswith("wandb:") and metrics:
        return Reading(EVALUATION)
    if not any(field_of(metric.name) in ("loss", "grad_norm") for metric in training):
        if any(field_of(metric.name) == "loss" for metric in metrics):
            return Reading(EVALUATION)
        if _BROKEN.search(text) and not EVALUATION_WORD.search(text) and _placed(Reading(ROW), text).step is not None:
            return torn("a step whose loss is no number")
        return _bad_loss(text)
    values, named = choose(training)
    return _placed(Reading(ROW, values, loss_name=named, rank=line.rank_in_text()), text)


def _is_evaluation(metric: Metric, text: str) -> bool:
    if EVALUATION_WORD.search(re.sub(r"[_/.-]", " ", metric.name)):
        return True
    before = text[:metric.start]
    if re.search(r"(?i)\btrain", before):
        return False
    return bool(re.search(r"(?i)(?:^|[\s|\[(*=-])(?:val|valid|validation|validate|validating|eval|evaluation|evaluating|test"
                          r"|testing)"
                          r"(?:[\s:\]|)*=-]|$)", before))


def _bad_loss(text: str) -> Reading | None:
    """A loss that a sentence says is not finite; None where no sentence does."""
    if not _BAD_LOSS.search(text) or re.match(r"(?:el)?if |assert |raise |print|logger|#", text):
        return None
    if EVALUATION_WORD.search(text) or re.search(
        r"(?i)\bnot? (?:nan|inf)\b|\bif\b|\bwhen(?:ever)?\b|\bcheck|\bcount|\bno\b|[:=] ?0\b", text):
        return None
    return _placed(Reading(ROW, {"loss": math.nan}), text)


def _placed(reading: Reading, text: str) -> Reading:
    """With the step and the epoch that the line tells."""
    for pattern in _PLACES:
        if found := pattern.search(text):
            reading.epoch, reading.step, reading.length = whole(found[1]), whole(found[2]), whole(found[3])
            return reading if reading.step is not None else too_long()
    steps = {name: found for name, pattern in _STEP.items() if (found := pattern.search(text))}
    epoch = _EPOCH.search(text)
    if steps:
        name, found = next(iter(steps.items()))
        reading.step = whole(found[1])
        if reading.step is None:
            return too_long()
        total = whole(found[2])
        if epoch is not None and name != "global step":
            reading.epoch, reading.length = whole(epoch[1]), total
        return reading
    if found := _SAMPLES.search(text):
        reading.step, reading.length = whole(found[1]), whole(found[2])
        return reading if reading.step is not None else too_long()
    if epoch is not None:
        reading.epoch = whole(epoch[1])
    return reading
