"""Step times of resnet50, yolov8m and llama3-shaped networks with random weights; on the CPU where there is no GPU.

    python workload.py benchmark --seconds 600                  # what a benchmark Job runs: a card's fingerprint
    python workload.py run --model resnet50 --steps 1000        # what a job of the demo runs

Each model ends with one line of JSON on standard output, which the controller reads from the pod's log
(``sched_env.jobs.fingerprints``). A model that does not fit the card's memory, or without a GPU the container's, is
reported as such; the others go on.
Needs torch alone. ``--size small`` shrinks the networks so that a test takes seconds; its times are no fingerprint.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

WARM_UP_STEPS = 3
"""The first steps allocate memory and choose algorithms."""
FEWEST_STEPS = 3


class Bottleneck(nn.Module):
    """ResNet's block: 1x1, 3x3, 1x1 and a shortcut."""

    def __init__(self, inside: int, middle: int, stride: int) -> None:
        super().__init__()
        out = middle * 4
        self.path = nn.Sequential(
            *_conv(inside, middle, 1), *_conv(middle, middle, 3, stride), *_conv(middle, out, 1)[:-1]
        )
        same = inside == out and stride == 1
        self.short = nn.Identity() if same else nn.Sequential(*_conv(inside, out, 1, stride)[:-1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add path and shortcut."""
        return functional.relu(self.path(x) + self.short(x))


def _conv(inside: int, out: int, kernel: int, stride: int = 1, act: type[nn.Module] = nn.ReLU) -> list[nn.Module]:
    conv = nn.Conv2d(inside, out, kernel, stride, kernel // 2, bias=False)
    return [conv, nn.BatchNorm2d(out), act()]


def resnet50(small: bool) -> tuple[nn.Module, torch.Tensor]:
    """ResNet-50, one image of 224 x 224."""
    blocks, width = ((1, 1, 1, 1), 8) if small else ((3, 4, 6, 3), 64)
    layers: list[nn.Module] = [*_conv(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)]
    inside = width
    for stage, count in enumerate(blocks):
        middle = width << stage
        for block in range(count):
            layers.append(Bottleneck(inside, middle, 2 if stage and not block else 1))
            inside = middle * 4
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000))
    return net, torch.randn(1, 3, 64 if small else 224, 64 if small else 224)


class C2f(nn.Module):
    """YOLOv8's block: split, a chain of residual pairs, all of it joined again."""

    def __init__(self, inside: int, out: int, count: int, shortcut: bool) -> None:
        super().__init__()
        self.half, self.shortcut = out // 2, shortcut
        self.first = nn.Sequential(*_conv(inside, out, 1, act=nn.SiLU))
        self.pairs = nn.ModuleList(
            nn.Sequential(*_conv(self.half, self.half, 3, act=nn.SiLU), *_conv(self.half, self.half, 3, act=nn.SiLU))
            for _ in range(count)
        )
        self.last = nn.Sequential(*_conv(self.half * (2 + count), out, 1, act=nn.SiLU))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Join what every pair gave."""
        parts = list(self.first(x).chunk(2, 1))
        for pair in self.pairs:
            after = pair(parts[-1])
            parts.append(parts[-1] + after if self.shortcut else after)
        joined: torch.Tensor = self.last(torch.cat(parts, 1))
        return joined


class Yolo(nn.Module):
    """YOLOv8 with the widths and depths of size m: backbone, neck up and down, three heads."""

    def __init__(self, widths: tuple[int, ...], depth: int) -> None:
        super().__init__()
        a, b, c, d, e = widths
        silu = nn.SiLU
        self.stem = nn.Sequential(*_conv(3, a, 3, 2, silu), *_conv(a, b, 3, 2, silu), C2f(b, b, depth, True))
        self.eighth = nn.Sequential(*_conv(b, c, 3, 2, silu), C2f(c, c, 2 * depth, True))
        self.sixteenth = nn.Sequential(*_conv(c, d, 3, 2, silu), C2f(d, d, 2 * depth, True))
        self.last = nn.Sequential(*_conv(d, e, 3, 2, silu), C2f(e, e, depth, True))
        self.up16, self.up8 = C2f(d + e, d, depth, False), C2f(c + d, c, depth, False)
        self.down8, self.down16 = (nn.Sequential(*_conv(n, n, 3, 2, silu)) for n in (c, d))
        self.mid16, self.mid32 = C2f(c + d, d, depth, False), C2f(d + e, e, depth, False)
        self.heads = nn.ModuleList(
            nn.Sequential(*_conv(n, c, 3, act=silu), *_conv(c, c, 3, act=silu), nn.Conv2d(c, 144, 1)) for n in (c, d, e)
        )

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return the three heads' maps."""
        eighth = self.eighth(self.stem(x))
        sixteenth = self.sixteenth(eighth)
        last = self.last(sixteenth)
        up16 = self.up16(torch.cat([functional.interpolate(last, scale_factor=2.0), sixteenth], 1))
        up8 = self.up8(torch.cat([functional.interpolate(up16, scale_factor=2.0), eighth], 1))
        mid16 = self.mid16(torch.cat([self.down8(up8), up16], 1))
        mid32 = self.mid32(torch.cat([self.down16(mid16), last], 1))
        return [head(each) for head, each in zip(self.heads, (up8, mid16, mid32), strict=True)]


def yolov8m(small: bool) -> tuple[nn.Module, torch.Tensor]:
    """YOLOv8m, one image of 640 x 640."""
    net = Yolo((8, 16, 16, 32, 32), 1) if small else Yolo((48, 96, 192, 384, 576), 2)
    side = 64 if small else 640
    return net, torch.randn(1, 3, side, side)


class Layer(nn.Module):
    """Llama's layer: grouped-query attention and a gated feed-forward, each after a norm."""

    def __init__(self, width: int, heads: int, shared: int, inner: int) -> None:
        super().__init__()
        self.heads, self.shared, self.size = heads, shared, width // heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, self.size * (heads + 2 * shared), bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend, then feed forward."""
        rows, tokens, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(rows, tokens, -1, self.size).transpose(1, 2)
        q, k, v = parts.split([self.heads, self.shared, self.shared], 1)
        k, v = (each.repeat_interleave(self.heads // self.shared, 1) for each in (k, v))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(rows, tokens, width))
        y = self.norms[1](x)
        after: torch.Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return after


def llama3(small: bool) -> tuple[nn.Module, torch.Tensor]:
    """A decoder of Llama 3 8B's shape, one prompt of 512 tokens."""
    width, layers, heads, shared, inner, words = (64, 2, 4, 2, 128, 1000) if small else (4096, 32, 32, 8, 14336, 128256)
    net = nn.Sequential(
        nn.Embedding(words, width),
        *(Layer(width, heads, shared, inner) for _ in range(layers)),
        nn.RMSNorm(width),
        nn.Linear(width, words, bias=False),
    )
    return net, torch.randint(words, (1, 16 if small else 512))


MODELS: dict[str, Callable[[bool], tuple[nn.Module, torch.Tensor]]] = {
    "resnet50": resnet50,
    "yolov8m": yolov8m,
    "llama3": llama3,
}


def measure(name: str, device: str, *, small: bool, seconds: float = 0.0, steps: int = 0) -> dict[str, Any]:
    """Run a model for a time, or for a number of steps, and return what is reported."""
    torch.manual_seed(0)
    about = {"benchmark": name, "device": device, "card": _card(device), "size": "small" if small else "full"}
    try:
        # Half precision where there is a GPU: eight billion parameters would not fit most cards otherwise.
        kind = torch.float16 if device == "cuda" else torch.float32
        torch.set_default_dtype(kind)
        if device == "cpu" and _weights_bytes(name, small) > _free_bytes():
            return {**about, "fits": False}
        with torch.device(device):
            net, example = MODELS[name](small)
        net.eval()
        times = _steps(net, example, device, seconds, steps)
    except (torch.OutOfMemoryError, MemoryError):
        return {**about, "fits": False}
    finally:
        torch.set_default_dtype(torch.float32)
        net = example = None  # type: ignore[assignment]
        if device == "cuda":
            torch.cuda.empty_cache()
    return {**about, "fits": True, "steps": len(times), "seconds": statistics.median(times), "total_s": sum(times)}


def _weights_bytes(name: str, small: bool) -> int:
    with torch.device("meta"):
        net, _ = MODELS[name](small)
    return sum(each.numel() * each.element_size() for each in net.parameters())


def _free_bytes() -> int:
    """Return what this process may still take: Linux grants more than there is, and then kills who uses it."""
    about = Path("/proc/meminfo").read_text().splitlines()
    free = [int(line.split()[1]) * 1024 for line in about if line.startswith("MemAvailable:")]
    most, used = (Path("/sys/fs/cgroup", name) for name in ("memory.max", "memory.current"))
    if most.exists() and most.read_text().strip() != "max":
        free.append(int(most.read_text()) - int(used.read_text()))
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        free.append(limit)
    return min(free)


def _steps(net: nn.Module, example: torch.Tensor, device: str, seconds: float, steps: int) -> list[float]:
    times: list[float] = []
    with torch.inference_mode():
        for _ in range(WARM_UP_STEPS):
            net(example)
        _wait(device)
        until = time.perf_counter() + seconds
        while len(times) < steps or (not steps and (len(times) < FEWEST_STEPS or time.perf_counter() < until)):
            began = time.perf_counter()
            net(example)
            _wait(device)
            times.append(time.perf_counter() - began)
    return times


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _card(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "cpu"


def main() -> int:
    """Run a benchmark, or a job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    bench = verbs.add_parser("benchmark", help="step times of models, one line of JSON each")
    bench.add_argument("--seconds", type=float, default=600.0, help="for each model")
    bench.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    job = verbs.add_parser("run", help="a number of steps of one model")
    job.add_argument("--model", choices=MODELS, required=True)
    job.add_argument("--steps", type=int, required=True)
    for one in (bench, job):
        one.add_argument("--size", choices=("full", "small"), default="full")
        one.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    options = parser.parse_args()
    device = options.device if options.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if options.verb == "run" and options.steps < 1:
        parser.error(f"--steps {options.steps}: expected at least 1")
    names = [options.model] if options.verb == "run" else options.models
    steps, seconds = (options.steps, 0.0) if options.verb == "run" else (0, options.seconds)
    fits = True
    for name in names:
        line = measure(name, device, small=options.size == "small", seconds=seconds, steps=steps)
        fits = line["fits"]
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
    return 0 if fits or options.verb == "benchmark" else 1


if __name__ == "__main__":
    sys.exit(main())
