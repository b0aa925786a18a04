from penstock.export import pipeline
from penstock.export.pipeline import Request


def test_it(trained, tmp_path):
    said = []
    (a,) = pipeline.export(
        Request(trained, formats=("onnx",), precisions=("int8",), output=tmp_path / "m", max_error=2e-6), said.append
    )
    print(a.receipt.plan.model_dump_json(indent=1)[:3000])
    print(a.receipt.build)
    print("\n".join(said))
    import collections

    import onnx

    print(collections.Counter(n.op_type for n in onnx.load(a.model_path).graph.node))
    from penstock.inspection import precisions

    print(precisions.summary(onnx.load(a.model_path).graph))
