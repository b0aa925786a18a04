"""ResNet-50 in fp16 behind LitServe, for front_ends.py: `RIVAL='8 2' PORT=8140 python rival_litserve.py`.

RIVAL: processes that take requests, and processes that run the model.

What LitServe's users would do for speed: raw bytes in, batches up to 64, the model channels-last in fp16 under one CUDA
graph for each batch size, pictures decoded on the GPU, `fast_queue`. An answer is a constant head of JSON and the
numbers behind it, so that the load can check it as it checks the other's.
"""

import json
import os
from typing import Annotated, Any

import litserve
import numpy as np
import torch
import torchvision
from fastapi import Body, Response

MOST = 64
SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64)
HEAD = json.dumps(
    {"outputs": [{"name": "scores", "datatype": "FP32", "shape": [1, 1000], "parameters": {"binary_data_size": 4000}}]}
).encode()


class API(litserve.LitAPI):  # type: ignore[misc]
    def setup(self, device: str) -> None:
        torch.manual_seed(0)
        net = (
            torchvision.models.resnet50(weights=None)
            .eval()
            .to(device, torch.float16, memory_format=torch.channels_last)
        )
        self.staged = torch.zeros(MOST, 150_528, dtype=torch.uint8, pin_memory=True)
        self.made = torch.zeros(MOST, 1000, dtype=torch.float32, pin_memory=True)
        self.held: dict[int, Any] = {}
        mean = torch.tensor([0.485, 0.456, 0.406], device=device, dtype=torch.float16).view(1, 3, 1, 1)
        std = torch.tensor([0.229, 0.224, 0.225], device=device, dtype=torch.float16).view(1, 3, 1, 1)
        with torch.no_grad():
            for size in SIZES:
                given = torch.zeros(size, 150_528, dtype=torch.uint8, device=device)

                def run(given: Any = given) -> Any:
                    pictures = given.view(-1, 224, 224, 3).permute(0, 3, 1, 2).to(torch.float16) / 255
                    return net((pictures - mean) / std).float()

                for _ in range(3):
                    run()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    out = run()
                self.held[size] = given, graph, out

    def decode_request(self, request: Annotated[bytes, Body(media_type="application/octet-stream")]) -> Any:
        return np.frombuffer(request, np.uint8)

    def batch(self, inputs: list[Any]) -> Any:
        staged = self.staged.numpy()
        for number, row in enumerate(inputs):
            staged[number] = row
        return len(inputs)

    def predict(self, count: int) -> Any:
        size = next(size for size in SIZES if size >= count)
        given, graph, out = self.held[size]
        given.copy_(self.staged[:size], non_blocking=True)
        graph.replay()
        self.made[:size].copy_(out, non_blocking=True)
        torch.cuda.synchronize()
        return self.made[:count].numpy().copy()

    def unbatch(self, output: Any) -> list[Any]:
        return list(output)

    def encode_response(self, output: Any) -> Response:
        headers = {"Inference-Header-Content-Length": str(len(HEAD))}
        return Response(HEAD + output.tobytes(), media_type="application/octet-stream", headers=headers)


if __name__ == "__main__":
    apis, workers = map(int, os.environ["RIVAL"].split())
    server = litserve.LitServer(
        API(max_batch_size=MOST, batch_timeout=0.002),
        accelerator="cuda",
        workers_per_device=workers,
        timeout=60,
        fast_queue=True,
    )
    server.run(
        host="127.0.0.1",
        port=int(os.environ["PORT"]),
        num_api_servers=apis,
        log_level="warning",
        generate_client_file=False,
        access_log=False,
    )
