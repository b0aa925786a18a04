"""The small model of conformance_peers.py behind MLServer and Triton; runs in their environments.

`Runtime` is MLServer's custom runtime; as a program this file is the server of nvidia-pytriton.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import onnxruntime


def session() -> Any:
    return onnxruntime.InferenceSession(os.environ["CONFORMANCE_MODEL"], providers=["CPUExecutionProvider"])


def serve() -> None:
    """Serve by the Triton inside nvidia-pytriton until a signal comes."""
    from pytriton.decorators import batch
    from pytriton.model_config import DynamicBatcher, ModelConfig, QueuePolicy, Tensor
    from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig

    model = session()

    @batch  # type: ignore[untyped-decorator]
    def infer(x: Any) -> dict[str, Any]:
        return {"scores": model.run(["scores"], {"x": x})[0]}

    address = {"http_address": "127.0.0.1", "grpc_address": "127.0.0.1"}
    ports = {"http_port": int(os.environ["CONFORMANCE_HTTP"]), "grpc_port": int(os.environ["CONFORMANCE_GRPC"])}
    config = TritonConfig(**address, **ports, allow_metrics=False)
    # pytriton keeps what is beside inference to those who know its token.
    security = TritonSecurityConfig(access_token=os.environ["CONFORMANCE_TOKEN"])
    policy = QueuePolicy(default_timeout_microseconds=60_000_000, allow_timeout_override=True)
    with Triton(config=config, security_config=security) as triton:
        triton.bind(
            model_name="small",
            infer_func=infer,
            inputs=[Tensor(name="x", dtype=np.float32, shape=(4,))],
            outputs=[Tensor(name="scores", dtype=np.float32, shape=(3,))],
            # So that Triton heeds a request's own timeout.
            config=ModelConfig(max_batch_size=64, batcher=DynamicBatcher(default_queue_policy=policy)),
        )
        triton.serve()


if __name__ == "__main__":
    serve()
else:
    from mlserver import MLModel
    from mlserver.codecs import NumpyCodec
    from mlserver.types import InferenceResponse

    class Runtime(MLModel):  # type: ignore[misc]
        """The model as MLServer's custom runtime."""

        async def load(self) -> bool:
            self.session = session()
            return True

        async def predict(self, payload: Any) -> Any:
            x = np.ascontiguousarray(NumpyCodec.decode_input(payload.inputs[0]), np.float32)
            scores = self.session.run(["scores"], {"x": x})[0]
            return InferenceResponse(
                model_name=self.name,
                model_version=self.version,
                outputs=[NumpyCodec.encode_output("scores", scores)],
            )
