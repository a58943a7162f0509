"""opd.localise: planted faults of every class are told right, in few replays; bundles come back as they were, bad ones are refused.

Testplan: LOC-01 (faults), LOC-02 (replays), LOC-03 (bundles).
"""
from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/setup installs it")

from opd.reference import ReferenceMissing, module  # noqa: E402
from opd.localise import LocaliseError, Seen, localise, random_states, read_bundle, write_bundle  # noqa: E402
from opd.localise.command import main  # noqa: E402
from opd.localise.finding import DATA, HARDWARE, NONE, NUMERIC  # noqa: E402
from pages import cells, quoted, section  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

torch.set_num_threads(1)

ROOT = Path(__file__).resolve().parents[3]
FP16 = {"device": "cpu", "dtype": torch.float16}
WIDTH, CLASSES = 16, 5

try:
    module()
    BUILT = True
except ReferenceMissing:
    BUILT = False


class RMSNorm(nn.Module):
    """As models write it by hand."""

    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x, mask):
        logits = self.q(x) @ self.k(x).transpose(-1, -2) / WIDTH**0.5
        return logits.masked_fill(~mask, -torch.inf).softmax(-1) @ self.v(x)


class Model(nn.Module):
    """One block: attention and a layer, each after a norm, with residuals, dropout and a head."""

    def __init__(self, norm=nn.LayerNorm):
        super().__init__()
        self.norm1, self.attn, self.norm2 = norm(WIDTH), Attention(), norm(WIDTH)
        self.up, self.down, self.drop = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH), nn.Dropout(0.1)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x, mask):
        x = x + self.attn(self.norm1(x), mask)
        return self.head(x + self.drop(self.down(functional.gelu(self.up(self.norm2(x))))))


def loss_of(model, batch):
    return functional.cross_entropy(model(batch["x"], batch["mask"]).float().flatten(0, 1), batch["target"].flatten())


def batch_of() -> dict:
    generator = torch.Generator().manual_seed(3)
    return {"x": torch.randn(2, 6, WIDTH, generator=generator), "mask": torch.ones(6, 6, dtype=torch.bool).tril(),
            "target": torch.randint(CLASSES, (2, 6), generator=generator)}


def model_of(norm=nn.LayerNorm) -> Model:
    torch.manual_seed(1)
    return Model(norm)


def found(model, batch, **options):
    """A finding in the process, within the bound; with the parameter groups of an optimizer."""
    calls = []

    def step():
        calls.append(None)
        return loss_of(model, batch)

    finding = localise(step, model, batch=batch, number=40, optimizer=torch.optim.SGD(model.parameters(), 0.125), **options)
    assert finding.replays == len(calls) <= math.ceil(math.log2(finding.operators)) + 2
    page = finding.text()
    assert len(page.splitlines()) < 40 and "step 40" in page and (finding.operator or "") in page
    json.dumps(finding.json(), allow_nan=False)
    return finding


def flip(tensor, index, bit) -> None:
    """Turns one bit of an FP32 tensor round."""
    with torch.no_grad():
        tensor.view(torch.int32)[index] ^= 1 << bit


# --- faults ------------------------------------------------------------------------------------------------------------------

def test_a_healthy_step_has_no_finding_and_everything_is_as_it_was():
    model, batch = model_of(), batch_of()
    loss_of(model, batch).backward()
    before = {name: (p.detach().clone(), p.grad) for name, p in model.named_parameters()}
    own, deterministic = random_states(), torch.are_deterministic_algorithms_enabled()
    finding = found(model, batch)
    assert finding.kind == NONE and finding.agree and finding.replays == 2
    assert torch.equal(torch.get_rng_state(), own.cpu) and torch.are_deterministic_algorithms_enabled() == deterministic
    assert all(torch.equal(p, before[name][0]) and p.grad is before[name][1] for name, p in model.named_parameters())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_a_bit_that_was_wrong_once():
    finding = found(model_of(), batch_of(), seen=Seen("norm2", 3))
    assert (finding.kind, finding.operator, finding.agree) == (HARDWARE, "norm2", True)
    assert "norm2 held 3 non-finite elements" in finding.text() and "another device" in finding.text()


@pytest.mark.parametrize("bad", [{0}, {0, 1}, {0, 2, 4}, {5}, {1}])
def test_a_bit_that_is_wrong_in_some_replays(bad):
    """The number of the replays in which an element of `up` has its exponent's top bits set."""
    model, batch, calls = model_of(), batch_of(), []

    def fault(layer, arguments, output):
        if len(calls) - 1 in bad:
            output = output.clone()
            output[1, 2, 7] = math.nan
        return output

    model.up.register_forward_hook(fault)

    def step():
        calls.append(None)
        return loss_of(model, batch)

    finding = localise(step, model, batch=batch)
    assert finding.kind == (HARDWARE if bad & {0, 1} else NONE) and finding.agree == (finding.kind == NONE)
    assert finding.replays <= math.ceil(math.log2(finding.operators)) + 2


@pytest.mark.parametrize("name, index, bit, autocast, operator", [
    ("up.weight", (5, 3), 30, FP16, "up"), ("attn.q.weight", (2, 9), 30, FP16, "attn.q"), ("head.bias", (1,), 30, FP16, "head"),
    ("norm2.weight", (4,), 30, FP16, "norm2"), ("norm2.weight", (4,), 30, None, "norm2"),  # 1.0 becomes Inf
    ("head.bias", (1,), 30, None, "step:cross_entropy"),                                  # 1e38 is in range until the loss subtracts
])
def test_a_flipped_bit_in_a_weight(name, index, bit, autocast, operator):
    model = model_of()
    flip(dict(model.named_parameters())[name].data, index, bit)
    finding = found(model, batch_of(), autocast=autocast)
    assert (finding.kind, finding.operator, finding.substep, finding.agree) == (HARDWARE, operator, "weight", True)
    assert (finding.source["tensor"], finding.source["index"], finding.source["flip"]) == (name, index, bit)


def test_weights_that_an_update_broke():
    model = model_of()
    with torch.no_grad():
        model.down.weight.fill_(math.nan)
    finding = found(model, batch_of())
    assert (finding.kind, finding.operator, finding.substep, finding.source["tensor"]) == (NUMERIC, "down", "weight", "down.weight")
    assert "parameter group 0 (0.125" in finding.text()


def test_a_nan_in_the_data():
    model, batch = model_of(), batch_of()
    batch["x"][1, 4, 9] = math.nan
    finding = found(model, batch)
    assert (finding.kind, finding.operator, finding.substep) == (DATA, "norm1", "input")
    assert finding.source["tensor"] == "batch['x']" and finding.source["index"] == (1, 4, 9) and finding.source["count"] == 1
    assert finding.elements.count == WIDTH and finding.elements.first == (1, 4, 0)


def test_what_nothing_reads_is_no_cause():
    """A NaN in a part of the batch, and in a row of an embedding."""
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(6, 4), nn.Linear(4, 2)

        def forward(self, tokens):
            return self.head(self.table(tokens)).exp()

    torch.manual_seed(1)
    model, batch = Table(), {"tokens": torch.tensor([1, 2, 3]), "spare": torch.tensor([math.nan])}
    with torch.no_grad():
        model.table.weight[5] = math.nan
        model.head.bias.fill_(1000)
    finding = localise(lambda: model(batch["tokens"]).sum(), model, batch=batch)
    assert (finding.kind, finding.operator, finding.substep, finding.source) == (NUMERIC, "model:exp", "exp", {})
    batch["tokens"][1] = 5
    finding = localise(lambda: model(batch["tokens"]).sum(), model, batch=batch)
    assert (finding.kind, finding.operator, finding.substep, finding.source["tensor"]) == (NUMERIC, "table", "weight", "table.weight")


def test_data_beyond_the_format():
    model, batch = model_of(), batch_of()
    model.norm1 = nn.Identity()
    batch["x"][0, 1, 2] = 1e6
    finding = found(model, batch, autocast=FP16)
    assert (finding.kind, finding.operator, finding.substep) == (DATA, "attn.q", "cast")
    assert finding.source["index"] == (0, 1, 2) and finding.source["value"] == 1e6


def test_a_row_that_is_hidden_as_a_whole():
    model, batch = model_of(), batch_of()
    batch["mask"][3] = False
    finding = found(model, batch)
    assert (finding.kind, finding.operator, finding.substep, finding.function) == (DATA, "attn:softmax", "max-subtraction", "softmax")
    assert finding.elements.count == 2 * 6 and finding.elements.first == (0, 3, 0)
    if BUILT:
        assert finding.modes == {"FAST": False, "STABLE": False, "SAFE": True}


def test_masks_are_no_incident():
    """-Inf that was put there: by number, as a tensor made in the step, as a buffer, in the batch."""
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(WIDTH, 6)
            self.register_buffer("causal", torch.full((6, 6), -torch.inf).triu(1))

        def forward(self, x, mask):
            y = self.layer(x)
            future = torch.ones(6, 6, dtype=torch.bool).triu(1)
            parts = [y + self.causal, (y + torch.full((6, 6), float("-inf")).triu(1)).float(), torch.where(future, -torch.inf, y), y
                     + mask]
            return sum(part.softmax(-1) for part in parts)

    torch.manual_seed(2)
    model, batch = Masked(), {"x": torch.randn(6, WIDTH), "mask": torch.zeros(6, 6).masked_fill(torch.ones(6, 6).triu(1) > 0, -torch.inf)}
    assert localise(lambda: model(**batch).square().sum(), model, batch=batch).kind == NONE


def test_no_variance_and_no_epsilon():
    model, batch = model_of(lambda width: nn.LayerNorm(width, eps=0.0)), batch_of()
    batch["x"][1, 2] = 0.75
    finding = found(model, batch)
    assert (finding.kind, finding.operator, finding.substep, finding.function) == (NUMERIC, "norm1", "scale", "norm")
    assert [piece.name for piece in finding.pieces] == ["mean", "variance", "scale", "normalise", "gain", "cast"]
    assert finding.pieces[1].own == 0 and finding.pieces[2].is_bad and not math.isfinite(finding.pieces[2].exact)
    assert "epsilon above 0" in finding.advice[0]
    if BUILT:
        assert finding.modes == {"FAST": False, "STABLE": False, "SAFE": True}  # which takes an infinite factor as the largest number


def test_a_square_that_overflows():
    """A norm by hand in FP16: 300 squared is beyond 65504."""
    model, batch = model_of(RMSNorm).half(), batch_of()
    batch["x"] = batch["x"].half()
    batch["x"][1, 3, 11] = 300
    finding = found(model, batch)
    # x / Inf is 0, so nothing shows in the norm's output; what it computes inside is not finite.
    assert (finding.kind, finding.operator, finding.substep, finding.function) == (NUMERIC, "norm1:pow", "square", "norm")
    assert finding.elements.count == 1 and finding.elements.first == (1, 3, 11) and finding.elements.channel == 11
    assert finding.pieces[0].exact == 90000 and "in FP32" in finding.advice[0]
    if BUILT:
        assert finding.modes == {"FAST": False, "STABLE": True, "SAFE": True}


def test_a_product_that_overflows():
    model, batch = model_of(), batch_of()
    with torch.no_grad():
        model.attn.q.weight.mul_(2000)
        model.attn.k.weight.mul_(2000)
    finding = found(model, batch, autocast=FP16)
    assert (finding.kind, finding.operator, finding.substep, finding.function) == (NUMERIC, "attn:matmul", "cast", "logits")
    assert [piece.name for piece in finding.pieces] == ["product", "accumulate", "cast"]
    assert finding.pieces[2].is_bad and not finding.pieces[1].is_bad and finding.pieces[2].exact > 65504
    assert 0 <= finding.elements.headroom < 8 and "QK normalisation" in finding.advice[0] and "attn.q.weight" in finding.advice[-1]
    if BUILT:
        assert finding.modes == {"FAST": False, "STABLE": True, "SAFE": True}


def test_a_gradient_under_too_large_a_loss_scale():
    model, batch = model_of(), batch_of()
    finding = found(model, batch, autocast=FP16, loss_scale=2.0**24)
    assert (finding.kind, finding.direction, finding.substep) == (NUMERIC, "backward", "loss scale")
    assert finding.where == "head:grad" and finding.operator == "step:float" and finding.format == "FP16"
    assert "GradScaler" in finding.advice[0] and finding.pieces[0].exact > 65504


def test_a_gradient_that_explodes_in_a_layer():
    """A weight of 3e4, and gradients of 2^4 times a few hundred: the product of the layer's backward is beyond FP16."""
    model, batch = model_of(), batch_of()
    batch["x"] *= 1e-3
    with torch.no_grad():
        model.up.weight[:, 4] = 3e4
        model.up.bias.fill_(0)
        model.norm2.weight[4] = 1e-6
    finding = found(model, batch, autocast=FP16, loss_scale=2.0**12)
    assert (finding.kind, finding.operator, finding.where, finding.direction) == (NUMERIC, "up", "norm2:grad",
                                                                                  "backward") and finding.elements.channel == 4
    assert finding.source == {}


def test_a_derivative_that_does_not_exist():
    layer = nn.Linear(WIDTH, 1, bias=False)
    with torch.no_grad():
        layer.weight.zero_()
    finding = localise(lambda: layer(torch.ones(3, WIDTH)).sqrt().sum(), layer)
    assert (finding.kind, finding.direction, finding.operator, finding.substep) == (NUMERIC, "backward", "step:sqrt", "derivative")


def test_a_loss_that_the_loss_scale_takes_beyond_fp32():
    layer = nn.Linear(4, 1)
    finding = localise(lambda: layer(torch.ones(2, 4)).square().mean() * 1e20, layer, loss_scale=2.0**80)
    assert (finding.kind, finding.operator, finding.substep) == (NUMERIC, "step:loss_scale",
                                                                 "loss scale") and "Lower the loss scale" in finding.advice[0]


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_gradient_behind_a_checkpoint(reentrant):
    """Hooks see little of what is computed a second time: the parameter's gradient still names its layer."""
    torch.manual_seed(1)
    layer = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    with torch.no_grad():
        layer[0].weight.mul_(1e-30)
    finding = localise(lambda: checkpoint(layer, torch.full((2, 4), 1e30, requires_grad=True), use_reentrant=reentrant).square().mean(),
                       layer, loss_scale=2.0**40)
    assert (finding.kind, finding.direction, finding.operator, finding.where) == (NUMERIC, "backward", "0",
                                                                                  "0.weight:grad"), finding.text()


def test_attention_of_pytorch_is_looked_into():
    """Fused, and inside PyTorch's own module, whose functions are operators; what its masks hide is no incident."""
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn, self.head = nn.MultiheadAttention(WIDTH, 2, batch_first=True), nn.Linear(WIDTH, 3)

        def forward(self, x, padding):
            return self.head(self.attn(x, x, x, key_padding_mask=padding, need_weights=True)[0])  # with weights: product and softmax

    torch.manual_seed(1)
    model, batch = Encoder(), (torch.randn(2, 5, WIDTH), torch.zeros(2, 5, dtype=torch.bool))
    batch[1][1, 3:] = True
    assert localise(lambda: model(*batch).square().mean(), model, batch=batch).kind == NONE
    batch[1][1] = True
    finding = localise(lambda: model(*batch).square().mean(), model, batch=batch)
    assert (finding.kind, finding.operator, finding.substep) == (DATA, "attn:softmax", "max-subtraction")
    with torch.no_grad():
        model.attn.in_proj_weight.mul_(1e25)
    finding = localise(lambda: model(batch[0], None).square().mean(), model, batch=batch)
    assert (finding.kind, finding.function, finding.substep) == (NUMERIC, "logits", "product"), finding.text()


def test_fused_attention_has_sub_steps():
    """Queries that are their own keys, of 1e20: their product is beyond FP32, inside of the kernel."""
    torch.manual_seed(1)
    layers, x = nn.ModuleDict({name: nn.Linear(8, 8) for name in "qv"}), torch.randn(2, 3, 8)
    with torch.no_grad():
        layers["q"].weight.mul_(1e20)

    def step():
        q, v = layers["q"](x), layers["v"](x)
        return functional.scaled_dot_product_attention(q, q, v, is_causal=True).square().mean()

    finding = localise(step, layers)
    assert (finding.kind, finding.operator, finding.substep, finding.function) == (NUMERIC, "step:scaled_dot_product_attention",
                                                                                   "product", "attention"), finding.text()
    assert [piece.name for piece in finding.pieces] == ["product", "exp", "sum", "mix"] and "QK normalisation" in finding.advice[0]


def test_a_gradient_that_fits_and_is_lost_on_the_way():
    """A row of logits of -Inf in the kernel gives an output of 0, and NaN in backward; FP64 has a gradient."""
    torch.manual_seed(1)
    layers, x = nn.ModuleDict({name: nn.Linear(8, 8) for name in "qv"}), torch.randn(2, 3, 8)
    with torch.no_grad():
        layers["q"].weight.mul_(1e20)

    def step():
        q, v = layers["q"](x), layers["v"](x)
        return functional.scaled_dot_product_attention(q, -q, v, is_causal=True).square().mean()

    finding = localise(step, layers)
    assert (finding.kind, finding.direction, finding.operator, finding.substep) == (NUMERIC, "backward",
                                                                                    "step:scaled_dot_product_attention",
                                                                                    "intermediate"), finding.text()
    assert math.isfinite(finding.pieces[0].exact) and finding.pieces[0].is_bad


def test_a_step_that_stops_at_its_loss():
    """The run ended in an exception: what ran until then is searched."""
    model, batch = model_of(), batch_of()
    batch["x"][0] = math.inf

    def step():
        loss = loss_of(model, batch)
        if not loss.isfinite():
            raise ValueError("loss is NaN")
        return loss

    finding = localise(step, model, batch=batch)
    assert (finding.kind, finding.operator) == (DATA, "norm1") and "loss is NaN" in finding.text()


@pytest.mark.parametrize("step, options, words", [
    (lambda: None, {}, "step: returns no loss"), (lambda: torch.zeros(()), {}, "step: no operator of the model"),
    (lambda: torch.zeros(()), {"loss_scale": 0}, "loss_scale: 0 is no finite number above 0"), (lambda: torch.zeros(()),
                                                                                                {"autocast": "fp16"}, "autocast: give"),
])
def test_bad_arguments_are_named(step, options, words):
    with pytest.raises(LocaliseError, match=words):
        localise(step, nn.Linear(2, 2), **options)


# --- replays -----------------------------------------------------------------------------------------------------------------

class Break(nn.Module):
    """Finite until it is told not to be."""

    def __init__(self):
        super().__init__()
        self.gain, self.runs = 1.0, 0

    def forward(self, x):
        self.runs += 1
        return x * self.gain


@pytest.mark.parametrize("number", [8, 60, 300])
def test_replays_are_bounded_and_short(number):
    """The first bad operator in every fifth of the model; what follows makes NaN of it, which the loss does not see: the search needs
    neither."""
    model = nn.Sequential(*(Break() for _ in range(number - 1)))
    steps = []

    def step():
        steps.append(None)
        return model(torch.ones(2, 3)).nan_to_num(0.0).sum()

    for at in range(0, number - 1, number // 5):
        model[at].gain = math.inf
        if at + 2 < number - 1:
            model[at + 2].gain = 0.0  # Inf becomes NaN, and nan_to_num hides it from the loss
        steps.clear()
        for part in model:
            part.runs = 0
        finding = localise(step, model)
        assert finding.operator == f"{at}:mul" and finding.operators == number + 1
        assert len(steps) == finding.replays <= math.ceil(math.log2(finding.operators)) + 2
        if at < number // 2:
            assert sum(part.runs for part in model) < finding.replays * (number - 1)  # a replay stops where it has seen enough
        model[at].gain = 1.0
        if at + 2 < number - 1:
            model[at + 2].gain = 1.0


class Hidden(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return torch.from_numpy(x.numpy() * factor)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


class Extension(nn.Module):
    """Nothing of it can be seen but its output."""

    def forward(self, x):
        return Hidden.apply(x, self.factor)


def test_modules_of_extensions_are_operators():
    model = nn.Sequential(nn.Linear(4, 4), Extension(), nn.Linear(4, 4))
    for factor, operator in ((math.inf, "1"), (2.0, None)):
        model[1].factor = factor
        finding = localise(lambda: model(torch.ones(2, 4)).sum(), model)
        assert finding.operator == operator and finding.kind == (NUMERIC if operator else NONE)


def test_calls_have_numbers_and_random_numbers_repeat():
    torch.manual_seed(5)
    layer, drop = nn.Linear(4, 4), nn.Dropout(0.5)
    model = nn.Sequential(layer, drop, layer)
    scale = [1.0]

    def step():
        return (model(torch.ones(64, 4)) * scale[0]).half().float().square().mean()

    finding = localise(step, model)
    assert finding.kind == NONE and finding.agree
    scale[0] = 1e6
    finding = localise(step, model)
    assert (finding.operator, finding.substep, finding.agree) == ("step:half", "cast", True)
    with torch.no_grad():
        layer.weight.fill_(1e30)
    assert localise(step, model).operator == "0#2"


# --- bundles -----------------------------------------------------------------------------------------------------------------

def write(path, model, batch, **options) -> Path:
    return write_bundle(path, model, batch, loss_of, number=40, optimizer=torch.optim.SGD(model.parameters(), 0.125), **options)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    batch = batch_of()
    batch["x"][1, 4, 9] = math.nan
    return write(tmp_path_factory.mktemp("bundle") / "incident", model_of(), batch)


def test_a_bundle_says_what_the_process_says(tmp_path):
    model, batch = model_of(), batch_of()
    with torch.no_grad():
        model.attn.q.weight.mul_(2000)
        model.attn.k.weight.mul_(2000)
    expected = found(model, batch, autocast=FP16, loss_scale=8.0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    states = random_states()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    path = write(tmp_path / "incident", model, batch, autocast=FP16, loss_scale=8.0, state=before, states=states)
    bundle = read_bundle(path, trust=True)
    assert bundle.localise() == expected
    assert torch.equal(bundle.states.cpu, states.cpu) and bundle.states.python == states.python and (bundle.states.numpy[1] == states.numpy[1]).all()


def test_a_bundle_keeps_tied_weights_and_drops_our_hooks(tmp_path):
    from opd.capture import Capture

    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 4, bias=False))
    model[2].weight = model[0].weight
    with Capture(model, path=tmp_path / "run.safetensors", probes="all") as capture:
        model(torch.ones(2, 4)).sum().backward()
        capture.step()
        path = write_bundle(tmp_path / "incident", model, (torch.ones(3, 4), torch.zeros(3, 4)), nn.MSELoss(), seen=Seen("2"))
    bundle = read_bundle(path, trust=True)
    assert bundle.model[0].weight is bundle.model[2].weight and isinstance(bundle.model[0].weight, nn.Parameter)
    assert torch.equal(bundle.model[1].running_mean, model[1].running_mean) and not any(part._forward_hooks
                                                                                        for part in bundle.model.modules())
    assert bundle.localise().kind == HARDWARE


SCRIPT = """
import math, torch
from torch import nn
from opd.localise import write_bundle
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.out = nn.Linear(4, 4), nn.Linear(4, 1)
    def forward(self, x):
        return self.out(self.layer(x).exp())
def loss(model, batch):
    return model(batch).square().mean()
if __name__ == "__main__":
    torch.manual_seed(1)
    write_bundle("incident", Net(), torch.full((2, 4), 4000.0), loss, number=7)
"""


def test_a_bundle_of_a_script_on_the_command_line(tmp_path, capsys):
    """Model and loss are defined in the script itself; it is gone when the bundle is read."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "sw_reference" / "python")}
    subprocess.run([sys.executable, script], cwd=tmp_path, env=environment, check=True, timeout=120)
    script.unlink()
    assert main([str(tmp_path / "incident"), "--trust"]) == 0
    told = capsys.readouterr().out
    assert "Incident of step 7: the arithmetic" in told and "operator   model:exp, in exp" in told


def test_the_command_line_in_json(written, capsys):
    assert main([str(written), "--trust", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["kind"], content["operator"], content["source"]["index"], content["source"]["value"]) == (DATA, "norm1", [1, 4, 9],
                                                                                                              "nan")
    assert main([str(written), "--trust"]) == 0
    assert "Incident of step 40: the data" in capsys.readouterr().out


def test_the_page_of_the_docs_has_every_key(written):
    page = (ROOT / "docs/localise.md").read_text(encoding="utf-8")
    keys = {name for row in cells(section(page, "Keys of `--json`")) for name in quoted(row[0])}
    contents = [found(model_of(), batch_of(), seen=Seen("norm2", 3)).json(), read_bundle(written, trust=True).localise().json()]
    assert all(set(content) == keys for content in contents)
    rows = {quoted(row[0])[0]: set(quoted(row[1])) for row in cells(section(page, "Keys of `--json`"))}
    assert set(contents[1]["elements"]) == rows["elements"] and set(contents[1]["source"]) <= rows["source"] and set(contents[1]["pieces"][0]) == rows["pieces"]
    info = json.loads((written / "bundle.json").read_text())
    listed = next(quoted(row[1]) for row in cells(section(page, "Bundle")) if quoted(row[0]) == ["bundle.json"])
    assert set(info) <= set(listed) and set(info["sha256"]) < {quoted(row[0])[0] for row in cells(section(page, "Bundle"))}


def changed(name: str, value):
    def change(folder: Path) -> None:
        info = json.loads((folder / "bundle.json").read_text())
        if value is None:
            del info[name]
        else:
            info[name] = value
        (folder / "bundle.json").write_text(json.dumps(info))
    return change


def spoiled(name: str):
    def change(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[-1] ^= 1
        (folder / name).write_bytes(data)
    return change


@pytest.mark.parametrize("change, words", [
    (lambda folder: (folder / "tensors.safetensors").unlink(), "tensors.safetensors: cannot be read (No such file or directory)"),
    (lambda folder: (folder / "bundle.json").unlink(), "bundle.json: cannot be read"),
    (lambda folder: (folder / "bundle.json").write_text("{"), "bundle.json: not valid JSON; write the bundle again"),
    (changed("bundle", 3), 'bundle.json: bundle is "3", this opd reads versions 1 and 2; use the opd that wrote it'),
    (changed("bundle", None), "bundle.json: bundle, its version, is missing"),
    (changed("loss_scale", -1), "bundle.json: loss_scale is not a number above 0"),
    (changed("autocast", {"device": "cpu", "dtype": "int8"}), "bundle.json: autocast is not null or"),
    (changed("rates", [{"lr": 1}]), "bundle.json: rates is not a list of"),
    (changed("seen", None), "bundle.json: seen is missing"),
    (changed("sha256", {}), "bundle.json: sha256 is not the digests of"),
    (changed("optimizers", [{"class": "SGD"}]), "bundle.json: optimizers is not a list of"),
    (changed("optimizers", [{"class": "SGD", "state": {"tensor": "optimizer/9"}}]), "state.safetensors: states of the optimizers cannot be read"),
    (changed("note", 3), "bundle.json: note is not a text"),
    (spoiled("module.pickle"), "module.pickle: its SHA-256 is not the one that sha256.module.pickle of bundle.json says"),
    (spoiled("tensors.safetensors"), "tensors.safetensors: its SHA-256 is not the one"),
    (lambda folder: (folder / "main.py").write_text("raise SystemExit(5)"), "main.py: is not listed in sha256 of bundle.json"),
])
def test_a_bad_bundle_is_refused(written, tmp_path, capsys, change, words):
    folder = tmp_path / "incident"
    shutil.copytree(written, folder)
    change(folder)
    assert main([str(folder), "--trust"]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith(f"opd localise: {folder}/{words}"), told.err
    assert len(told.err.splitlines()) == 1 and ";" in told.err


def test_a_bundle_of_version_1_is_read(written, tmp_path):
    folder = tmp_path / "incident"
    shutil.copytree(written, folder)
    for name in ("optimizers", "scaler", "note"):
        changed(name, None)(folder)
    changed("bundle", 1)(folder)
    bundle = read_bundle(folder, trust=True)
    assert (bundle.optimizers, bundle.scaler, bundle.history) == ((), None, None) and bundle.localise().operator == "norm1"


def test_a_bundle_runs_no_code_before_it_is_trusted(written, capsys, monkeypatch):
    import opd.localise.bundle as bundle

    monkeypatch.setattr(bundle, "_Unpickler", None)
    assert main([str(written)]) == 2
    assert "rebuilding the model executes code of the bundle; where it comes from a source that you trust, give --trust" in capsys.readouterr().err


def test_what_no_bundle_can_hold_is_said(tmp_path, written):
    with pytest.raises(LocaliseError, match="step: cannot be pickled .*call localise\\(\\) in the process itself"):
        write_bundle(tmp_path / "a", nn.Linear(2, 2), torch.ones(1, 2), lambda model, batch: model(batch).sum())
    with pytest.raises(LocaliseError, match="is there already; give another path"):
        write_bundle(written, nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(LocaliseError, match="cannot be written .No such file or directory.; give a path"):
        write_bundle(tmp_path / "no" / "a", nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(LocaliseError, match='state: "x" is no tensor of the model'):
        write_bundle(tmp_path / "a", nn.Linear(2, 2), torch.ones(1, 2), state={"x": torch.ones(1)})
    assert list(tmp_path.iterdir()) == []
