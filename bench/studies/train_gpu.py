"""What training does on GPUs: `python train_gpu.py OUTPUT --data FOLDER [--parts a,b,c,d,e] [--device cpu --tiny]`.

OUTPUT is a folder: `train_gpu.json` is written there after each measurement, so that what ends early leaves the others.
--data is the folder of Fashion-MNIST's four IDX files; without it, pictures of noise take their place, and (a) says so.

a  Fashion-MNIST on one GPU: seconds, accuracy on the test part, samples/s, how busy the GPU was, memory.
b  precisions (fp32, tf32, fp16 with its scaler, bf16), channels last, torch.compile, copying ahead or not: samples/s,
   losses.
c  one GPU and two, a ResNet-50 on pictures of 224 x 224 from memory, --rows of each GPU, BatchNorm's statistics of each
   GPU's own and of all: samples/s.
d  two runs with machine.deterministic, and one that is ended by SIGTERM and goes on: the same weights, to the bit; the
   same of two GPUs.
e  the ceiling of c: torch's own loop, ddp_bare.py.

--tiny takes few samples and small networks, to see on a CPU that it works: --device cpu --tiny.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

WANTED_ACCURACY, WANTED_S, WANTED_RATIO = 0.935, 600.0, 1.8
RUN_S = 540.0
NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def noise(folder: Path, train: int, test: int) -> Path:
    """IDX files of noise, in which a class is a brightness."""
    draws = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for images, labels, count in ((NAMES[0], NAMES[1], train), (NAMES[2], NAMES[3], test)):
        classes = (np.arange(count) % 10).astype(np.uint8)
        pixels = draws.integers(0, 100, (count, 28, 28), np.uint8) + classes[:, None, None] * 15
        (folder / images).write_bytes(struct.pack(">IIII", 0x803, count, 28, 28) + pixels.tobytes())
        (folder / labels).write_bytes(struct.pack(">II", 0x801, count) + classes.tobytes())
    return folder


def split_without_scikit_learn() -> None:
    """Where it is not there: a split that is as good for a study, each class's last samples."""
    from types import SimpleNamespace

    from penstock.data import split as parts

    def split(rows: Any, test_size: float, random_state: int, stratify: Any) -> tuple[Any, Any]:
        order = np.lexsort((np.random.default_rng(random_state).permutation(len(rows)), stratify))
        held = np.zeros(len(rows), bool)
        held[order[:: round(1 / test_size)]] = True
        return rows[~held], rows[held]

    try:
        import sklearn.model_selection  # noqa: F401
    except ImportError:
        parts.require = lambda *_: None  # type: ignore[attr-defined, assignment]
        sys.modules["sklearn.model_selection"] = SimpleNamespace(train_test_split=split)  # type: ignore[assignment]


def work(told: dict[str, Any]) -> None:
    """One run, in a process of its own, or several that Lightning begins: penstock's loop, some parts left out."""
    import torch
    from torch.utils.data import Dataset

    from penstock.train import loaders, loop, recipe

    class Same(Dataset[Any]):
        """One batch from memory, whichever samples are asked for."""

        def __init__(self, samples: Any, preprocess: Any, *_: Any) -> None:
            shape = (told["rows"], preprocess.height, preprocess.width, preprocess.channels)
            self._name = preprocess.input
            self._pixels = torch.randint(0, 256, shape, dtype=torch.uint8)
            self._labels = torch.from_numpy(np.asarray(samples.labels)[: told["rows"]])

        def __getitem__(self, indices: Any) -> Any:
            return {self._name: self._pixels[: len(indices)]}, self._labels[: len(indices)]

    if told["same"]:
        loaders.dataset = Same  # type: ignore[assignment, misc]
    if not told["ahead"]:
        loop.Ahead = lambda batches, _: batches  # type: ignore[assignment, misc, attr-defined, return-value]
    split_without_scikit_learn()
    job = recipe.load("fashion-mnist", told["changes"])
    ran = loop.train(job, Path(told["folder"]), progress=False, resume=told["resume"])
    if ran.figures is not None:
        Path(told["folder"], "told.json").write_text(
            json.dumps({"test_accuracy": getattr(ran.figures, "accuracy", None), "seconds": ran.seconds})
        )


def started(folder: Path, changes: list[str], **more: Any) -> subprocess.Popen[str]:
    told = {"folder": str(folder), "changes": changes, "same": False, "ahead": True, "resume": False, "rows": 0, **more}
    return subprocess.Popen(  # noqa: S603
        [sys.executable, __file__, "--work", json.dumps(told)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finished(process: subprocess.Popen[str], code: int = 0) -> None:
    """Wait for a run; one that ends otherwise, or hangs, is an error that says how."""
    try:
        said, _ = process.communicate(timeout=RUN_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        raise RuntimeError(f"no end within {RUN_S:g} s: {said[-1500:]}") from None
    if process.returncode != code:
        raise RuntimeError(f"exit code {process.returncode}, not {code}: {said[-1500:]}")


def ran(folder: Path, changes: list[str], **more: Any) -> dict[str, Any]:
    """A run from its beginning to its end, as figures."""
    shutil.rmtree(folder, ignore_errors=True)
    with busy() as shares:
        finished(started(folder, changes, **more))
    return {**figures(folder), "nvml_busy": round(sum(shares) / len(shares), 3) if shares else None}


def figures(folder: Path) -> dict[str, Any]:
    rows = history(folder)
    last = {
        name: rows[-1].get(name) for name in ("train_loss", "val_loss", "val_accuracy", "gpu_busy", "peak_memory_mb")
    }
    rates = sorted(row["samples_per_s"] for row in rows[1:] or rows)  # the first epoch warms up
    seconds = sorted(row["seconds"] for row in rows[1:] or rows)
    ended = json.loads((folder / "told.json").read_text())
    middle = len(rates) // 2
    return {**ended, **last, "samples_per_s": rates[middle], "epoch_s": seconds[middle], "epochs": len(rows)}


def history(folder: Path) -> list[dict[str, float]]:
    path = folder / "history.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


@contextmanager
def busy() -> Iterator[list[float]]:
    """How busy the first GPU is meanwhile, 0 to 1, by NVML or nvidia-smi, twice a second; empty without either."""
    shares: list[float] = []
    ask, ended = asker(), threading.Event()

    def look() -> None:
        while ask is not None and not ended.wait(0.5):
            shares.append(ask())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield shares
    finally:
        ended.set()
        thread.join(10)


def asker() -> Callable[[], float] | None:
    # NVML numbers all of the machine's, whatever CUDA is to see of them.
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    first = int(seen) if seen.isdigit() else 0
    try:
        import pynvml  # type: ignore[import-untyped]

        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(first)
        return lambda: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100
    except Exception:
        program = shutil.which("nvidia-smi")
    if program is None:
        return None
    words = [program, f"--id={first}", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    return lambda: float(subprocess.run(words, capture_output=True, text=True, check=True).stdout) / 100  # noqa: S603


def bare() -> dict[str, Any]:
    """What torch's own loop does of the same on this machine."""
    script = Path(__file__).with_name("ddp_bare.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=RUN_S, check=False)  # noqa: S603
    if done.returncode:
        raise RuntimeError(done.stderr[-1500:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def cut(folder: Path, changes: list[str]) -> dict[str, Any]:
    """A run that is ended by SIGTERM, all its processes at once, after two epochs, and goes on."""
    shutil.rmtree(folder, ignore_errors=True)
    process = started(folder, changes)
    until = time.monotonic() + RUN_S
    while len(history(folder)) < 2 and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGTERM)
    began = time.monotonic()
    finished(process, -signal.SIGTERM)  # nothing but the loop stands in its way
    took, done = time.monotonic() - began, len(history(folder))
    finished(started(folder, changes, resume=True))
    return {"ended_within_s": round(took, 2), "epochs_before": done}


def alike(one: Path, other: Path) -> dict[str, bool]:
    import torch

    def told(folder: Path) -> list[list[float]]:
        return [[row[name] for name in ("train_loss", "val_loss", "val_accuracy")] for row in history(folder)]

    first, second = (torch.load(folder / "last.pth", weights_only=True)["state_dict"] for folder in (one, other))
    return {
        "same_losses": told(one) == told(other),
        "same_weights": all(torch.equal(first[name], second[name]) for name in first),
    }


class Study:
    """The parts, and what they have found so far."""

    def __init__(self, output: Path, data: Path | None, device: str, tiny: bool, rows: tuple[int, ...]) -> None:
        self.output, self.tiny, self.found = output, tiny, dict[str, Any]()
        self.synthetic = data is None
        where = data or noise(output / "noise", *((2000, 200) if tiny else (60_000, 10_000)))
        widths = "[8, 8]" if tiny else "[64, 128, 256]"
        self.common = [
            f"machine.device={device}", f"dataset.path={json.dumps(str(where))}", f"model.kwargs.widths={widths}",
            f"batch_size={128 if tiny else 512}", "track={csv=false, tensorboard=false}",
        ]  # fmt: skip
        self.device, self.rows = device, rows

    def keep(self, name: str, measure: Callable[[], dict[str, Any]]) -> None:
        """Measure; an error is kept in the place of what it has prevented."""
        try:
            self.found[name] = measure()
        except Exception as error:
            self.found[name] = {"failed": f"{type(error).__name__}: {error}"}
            traceback.print_exc()
        print(f"{name}: {json.dumps(self.found[name])}", flush=True)
        (self.output / "train_gpu.json").write_text(json.dumps(self.found, indent=1))

    def changes(self, epochs: int, *more: str) -> list[str]:
        return [*self.common, f"epochs={2 if self.tiny and epochs > 4 else epochs}", *more]

    def a(self) -> None:
        def measure() -> dict[str, Any]:
            precision = "bf16" if self.device != "cpu" else "fp32"
            got = ran(self.output / "a", self.changes(30, f"machine.precision={precision}"))
            reached = got["test_accuracy"] >= WANTED_ACCURACY and got["seconds"] <= WANTED_S
            return {**got, "reached": reached and not self.synthetic, "noise": self.synthetic}

        self.keep("a fashion-mnist", measure)

    def b(self) -> None:
        gpu = self.device != "cpu"
        ways: dict[str, tuple[list[str], bool]] = {"fp32": ([], True), "bf16": (["machine.precision=bf16"], True)}
        if gpu:
            ways |= {
                "tf32": (["machine.tf32=true"], True),
                "fp16": (["machine.precision=fp16"], True),
            }
        ways |= {
            "bf16, not ahead": (["machine.precision=bf16"], False),
            "bf16, channels last": (["machine.precision=bf16", "machine.channels_last=true"], True),
            "bf16, 4 readers": (["machine.precision=bf16", "loader.workers=4"], True),
        }
        if gpu:
            ways["bf16, compiled"] = (["machine.precision=bf16", "machine.compile=true"], True)
        for name, (changes, ahead) in ways.items():
            self.keep(f"b {name}", partial(ran, self.output / "b", self.changes(4, *changes), ahead=ahead))

    def c(self) -> None:
        side = 32 if self.tiny else 224
        big = [
            "preprocess.mode=RGB", f"preprocess.height={side}", f"preprocess.width={side}",
            "preprocess.mean=[0.5, 0.5, 0.5]", "preprocess.std=[0.25, 0.25, 0.25]", "augment.shift=0",
            "augment.flip=false", "machine.precision=bf16", "machine.channels_last=true", f"model={self.net()}",
        ]  # fmt: skip
        few = self.output / "noise" if self.tiny else noise(self.output / "few", 40_000, 1000)
        changes = [*self.common[:1], f"dataset.path={json.dumps(str(few))}", self.common[4], "epochs=2", *big]
        for rows in self.rows:
            rates = {}
            for name, count, together in (("1", 1, False), ("2", 2, False), ("2, statistics of all", 2, True)):
                job = [*changes, f"batch_size={rows}", f"machine.devices={count}"]
                job.append(f"machine.sync_batchnorm={str(together).lower()}")
                whole = f"c {name} x resnet-50, {rows} rows"
                self.keep(whole, partial(ran, self.output / "c", job, same=True, rows=rows))
                rates[name] = self.found[whole].get("samples_per_s", 0.0)
            if one := rates.pop("1"):
                ratios = {name: round(rate / one, 3) for name, rate in rates.items()}
                found = {**ratios, "reached": ratios["2"] >= WANTED_RATIO}
                self.keep(f"c ratio, {rows} rows", partial(dict, found))

    def net(self) -> str:
        try:
            import torchvision  # noqa: F401
        except ImportError:
            return '{target="penstock.train.nets:ResidualNet", kwargs={channels=3, widths=[64, 256, 512, 1024, 2048]}}'
        return f'{{target="torchvision:{"resnet18" if self.tiny else "resnet50"}", kwargs={{}}}}'

    def d(self) -> None:
        job = [*self.changes(4), "machine.deterministic=true"]
        one, two = self.output / "d-one", self.output / "d-two"

        def again() -> dict[str, Any]:
            ran(one, job)
            ran(two, job)
            return dict(alike(one, two))

        def ended() -> dict[str, Any]:
            return {**cut(self.output / "d-cut", job), **alike(one, self.output / "d-cut")}

        def ended_of_two() -> dict[str, Any]:
            two_gpus = [*job, "machine.devices=2"]
            ran(self.output / "d-whole", two_gpus)
            told = cut(self.output / "d-cut-of-two", two_gpus)
            return {**told, **alike(self.output / "d-whole", self.output / "d-cut-of-two")}

        self.keep("d twice", again)
        self.keep("d ended and gone on", ended)
        self.keep("d two, ended and gone on", ended_of_two)

    def e(self) -> None:
        self.keep("e bare", bare)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, nargs="?", default=Path("train_gpu"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--parts", default="a,b,c,d,e")
    parser.add_argument("--rows", default="512,128", help="of part c, a GPU's share of a batch")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--work", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.work)
        return
    given.output.mkdir(parents=True, exist_ok=True)
    rows = (16,) if given.tiny else tuple(map(int, given.rows.split(",")))
    study = Study(given.output.absolute(), given.data and given.data.absolute(), given.device, given.tiny, rows)
    for part in given.parts.split(","):
        getattr(study, part)()


if __name__ == "__main__":
    main()
