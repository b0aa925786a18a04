"""A ResNet-50 under torch's DDP and nothing else, on one GPU and two: `python ddp_bare.py`; prints one line of JSON.

The ceiling for train_gpu.py's part c: one batch, of 512 and of 128 pictures, that stays on the GPU, bf16, channels
last, SGD. It also says whether the GPUs reach each other's memory, by which ways NCCL has connected them, and how fast
100 MB, as much as the gradients are, are added up.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

SIZES, WARM, STEPS = (512, 128), 10, 30
WAYS = ("1", "2", "2, statistics of all", "2, gradients in bf16", "2, nothing summed")


def rate(rank: int, way: str, rows: int) -> float:
    """Pictures a second, of all ranks."""
    from torchvision.models import resnet50

    gpu = torch.device("cuda", rank)
    net: nn.Module = resnet50().to(gpu, memory_format=torch.channels_last)
    world = distributed.get_world_size() if distributed.is_initialized() else 1
    if world > 1:
        if "statistics" in way:
            net = nn.SyncBatchNorm.convert_sync_batchnorm(net)  # type: ignore[no-untyped-call]
        net = DistributedDataParallel(net, device_ids=[rank])
        if "bf16" in way:
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

            net.register_comm_hook(None, bf16_compress_hook)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    pictures = torch.randn(rows, 3, 224, 224, device=gpu).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (rows,), device=gpu)

    def steps(count: int) -> float:
        torch.cuda.synchronize(gpu)
        began = time.perf_counter()
        for _ in range(count):
            if "nothing" in way:
                net.require_backward_grad_sync = False  # type: ignore[assignment]
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = nn.functional.cross_entropy(net(pictures), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        torch.cuda.synchronize(gpu)
        return time.perf_counter() - began

    steps(WARM)
    return world * rows * STEPS / steps(STEPS)


def summed(rank: int) -> float:
    """GB/s of an all-reduce of 100 MB, by the bytes of one rank."""
    held = torch.ones(25_000_000, device=f"cuda:{rank}")
    for count in (3, 10):
        torch.cuda.synchronize(rank)
        began = time.perf_counter()
        for _ in range(count):
            distributed.all_reduce(held)
        torch.cuda.synchronize(rank)
        took = time.perf_counter() - began
    return 10 * 0.1 / took


def connected(told: Path) -> list[str]:
    """The ways that NCCL names where it connects: P2P/CUMEM, SHM/direct, NET/Socket."""
    return sorted(set(re.findall(r" via (\S+)", told.read_text()))) if told.is_file() else []


def work(rank: int) -> None:
    torch.cuda.set_device(rank)
    torch.backends.cudnn.benchmark = True
    found: dict[str, Any] = {}
    told = Path(tempfile.gettempdir()) / f"nccl-{os.getpid()}"
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=str(told))
    if rank == 0:
        found |= {f"1, {rows} rows": rate(0, "1", rows) for rows in SIZES}
        found["peers"] = torch.cuda.can_device_access_peer(0, 1)
    distributed.init_process_group("nccl", rank=rank, world_size=2)
    found["all-reduce GB/s"] = summed(rank)
    for way in WAYS[1:]:
        found |= {f"{way}, {rows} rows": rate(rank, way, rows) for rows in SIZES}
    if rank == 0:
        figures = {key: round(value, 2) for key, value in found.items()}
        print(json.dumps({**figures, "ways": connected(told)}))
    told.unlink(missing_ok=True)
    distributed.destroy_process_group()


def main() -> None:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29531")
    torch.multiprocessing.spawn(work, nprocs=2)  # type: ignore[attr-defined, no-untyped-call]


if __name__ == "__main__":
    main()
