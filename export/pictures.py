"""Pictures: ONNX graphs that begin with uint8 pictures, and make of them what the float32 graph takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock.export import graph as graphs
from penstock.export import protos
from penstock.preprocess import ImagePreprocess
from penstock.signature import Signature


def decoded(model: Any, signature: Signature, image: ImagePreprocess) -> Any:
    """A model behind the casting, layout, scaling and normalising of its pictures.

    These are float32 whatever the graph computes in: in fp16 their rounding would come on top of the model's. The cast
    comes first, since TensorRT takes uint8 into nothing else.

    Args:
        model: `onnx.ModelProto`, in any precision, with float32 inputs; left as it is.
        signature: what it is to take.
        image: how pixels become numbers; its input bears the same name before and after.

    Raises:
        PenstockError: the result does not keep the signature.
    """
    onnx = protos.onnx_package()
    made = protos.copied(model)
    numbers = protos.fresh(made.graph, f"{image.input}.numbers")
    for inner in protos.graphs_in(made.graph):
        for node in inner.node:
            for place, name in enumerate(node.input):
                if name == image.input:
                    node.input[place] = numbers
    (given,) = [value for value in made.graph.input if value.name == image.input]
    batch = protos.copied(given.type.tensor_type.shape.dim[0])
    tensor = next(tensor for tensor in signature.inputs if tensor.name == image.input)
    given.CopyFrom(onnx.helper.make_tensor_value_info(tensor.name, onnx.TensorProto.UINT8, tensor.shape))
    given.type.tensor_type.shape.dim[0].CopyFrom(batch)
    nodes = _nodes(made.graph, image, numbers)
    nodes += [protos.copied(node) for node in made.graph.node]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    graphs.check(made, signature)
    return made


def _nodes(graph: Any, image: ImagePreprocess, numbers: str) -> list[Any]:
    """From pixels to numbers, as `ImagePreprocess.normalize` computes them; the constants go into the graph.

    Means and deviations are those of a whole row of pixels: onnxruntime leaves the layout as it is in front of int8
    convolutions, and broadcasting three numbers over the last axis took it 0.8 ms a picture of 224 x 224, not 0.05.
    """
    onnx = protos.onnx_package()
    row = (1, 1, image.width, image.channels)
    held = protos.fresh(graph, f"{image.input}.cast")
    nodes = [onnx.helper.make_node("Cast", [image.input], [held], name=held, to=onnx.TensorProto.FLOAT)]
    steps: tuple[tuple[str, str, Any], ...] = (
        ("Div", "levels", np.float32(1 / image.scale)),
        ("Sub", "mean", np.broadcast_to(np.asarray(image.mean, np.float32), row)),
        ("Div", "std", np.broadcast_to(np.asarray(image.std, np.float32), row)),
    )
    for operator, what, values in steps:
        constant, result = (protos.fresh(graph, f"{image.input}.{part}") for part in (what, f"by_{what}"))
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(values), constant))
        nodes.append(onnx.helper.make_node(operator, [held, constant], [result], name=result))
        held = result
    nodes.append(onnx.helper.make_node("Transpose", [held], [numbers], name=numbers, perm=[0, 3, 1, 2]))
    return nodes
