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

    They are float32 whatever the graph computes in: in fp16 their rounding would come on top of the model's. The cast
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
    """From pixels to numbers, as `ImagePreprocess.normalize` computes them; the constants go into the graph."""
    onnx = protos.onnx_package()
    cast, planes = (protos.fresh(graph, f"{image.input}.{step}") for step in ("cast", "planes"))
    nodes = [
        onnx.helper.make_node("Cast", [image.input], [cast], name=cast, to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("Transpose", [cast], [planes], name=planes, perm=[0, 3, 1, 2]),
    ]
    steps = (("Div", "levels", (1 / image.scale,)), ("Sub", "mean", image.mean), ("Div", "std", image.std))
    held = planes
    for operator, what, values in steps:
        constant, result = (protos.fresh(graph, f"{image.input}.{part}") for part in (what, f"by_{what}"))
        array = np.asarray(values, np.float32).reshape(1, -1, 1, 1)
        graph.initializer.append(onnx.numpy_helper.from_array(array, constant))
        result = numbers if what == "std" else result
        nodes.append(onnx.helper.make_node(operator, [held, constant], [result], name=result))
        held = result
    return nodes
