"""The intake proof: a checkpoint's tensors all find their place in the module, or are listed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim.swa_utils import AveragedModel

from penstock import proof
from penstock.errors import PenstockError
from penstock.proof import PREFIXES, Proof
from penstock.state import Choice, Found, find

MIDDLES = ("_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
ANY = Choice()


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def state(prefix: str = "") -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {prefix + name: tensor for name, tensor in net().state_dict().items()}


def load(module: nn.Module, content: Any, choice: Choice = ANY) -> Proof:
    return proof.load(module, find(content, choice), choice)


def refusal(module: nn.Module, content: Any, choice: Choice = ANY) -> str:
    with pytest.raises(PenstockError) as caught:
        load(module, content, choice)
    message = str(caught.value)
    assert "\n" not in message
    return message


def assert_holds(module: nn.Module, expected: dict[str, torch.Tensor]) -> None:
    held = module.state_dict()
    assert held.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in held.items())


def test_every_tensor_is_loaded_and_counted() -> None:
    module = net()
    found = load(module, {"state_dict": state(), "epoch": 3})
    assert found == Proof(loaded=7, expected=7, wrapper="state_dict")
    assert str(found) == "7 of 7 tensors loaded, from 'state_dict'"
    assert_holds(module, state())


def test_the_reason_for_the_choice_is_kept() -> None:
    found = load(net(), {"model": state(), "model_ema": state()}, Choice(ema=True))
    assert (found.wrapper, found.why) == ("model_ema", "--ema")
    assert str(found) == "7 of 7 tensors loaded, from 'model_ema' (--ema)"


@pytest.mark.parametrize("prefix", PREFIXES)
def test_each_prefix_alone_is_stripped_and_told(prefix: str) -> None:
    module = net()
    found = load(module, state(prefix))
    assert found.prefix == prefix
    assert str(found) == f"7 of 7 tensors loaded, prefix {prefix!r} stripped"
    assert_holds(module, state())


@given(st.lists(st.sampled_from(PREFIXES), max_size=5).map("".join))
def test_prefixes_are_stripped_however_they_are_stacked(prefix: str) -> None:
    module = net()
    assert load(module, {"state_dict": state(prefix)}).prefix == prefix
    assert_holds(module, state())


def test_a_prefix_that_is_the_modules_own_is_kept() -> None:
    module = nn.ModuleDict({"model": net()})
    assert load(module, state("module.model.")).prefix == "module."
    assert_holds(module["model"], state())
    wrapped = nn.DataParallel(net())
    assert load(wrapped, state("module.")).prefix == ""
    assert_holds(wrapped.module, state())


def test_a_prefix_on_some_names_only_is_not_stripped() -> None:
    assert "6 missing" in refusal(net(), state("model.") | {"other": torch.zeros(1)})
    message = refusal(net(), state("module.") | {"other": torch.zeros(1)})  # which is taken out of any name
    assert "1 unexpected (other)" in message
    assert "missing" not in message


@pytest.mark.parametrize("prefix", ["", "module.", "model._orig_mod."])
@given(st.lists(st.sampled_from(MIDDLES), min_size=1, max_size=3))
def test_what_wrappers_put_in_the_middle_of_names_is_taken_away(prefix: str, middles: list[str]) -> None:
    module, middle = net(), ".".join(middles)
    content = {f"{prefix}{name.replace('.', f'.{middle}.')}": tensor for name, tensor in state().items()}
    load(module, content)
    assert_holds(module, state())


def test_only_some_parts_of_a_model_may_have_been_wrapped() -> None:
    module = net()
    load(module, {name.replace("0.", "0._orig_mod."): tensor for name, tensor in state().items()})
    assert_holds(module, state())


def test_names_that_differ_only_by_a_wrappers_part_are_left_alone() -> None:
    weight = torch.zeros(1)
    message = refusal(nn.ParameterDict({"a": nn.Parameter(weight)}), {"a": weight, "module.a": weight})
    assert "1 unexpected (module.a)" in message


def test_a_part_in_the_middle_that_is_the_models_own_is_kept() -> None:
    module = nn.ModuleDict({"part": nn.ModuleDict({"module": nn.Linear(2, 2)})})
    expected = module.state_dict()
    found = load(nn.ModuleDict({"part": nn.ModuleDict({"module": nn.Linear(2, 2)})}), expected)
    assert found == Proof(loaded=2, expected=2)


def test_an_averaged_model_is_one_with_a_counter() -> None:
    average = AveragedModel(net())
    average.update_parameters(net())
    module = net()
    found = load(module, {"model": state(), "ema": average.state_dict()})
    assert (found.loaded, found.wrapper, found.prefix) == (7, "ema", "module.")
    assert_holds(module, average.module.state_dict())
    assert load(module, average.state_dict()).loaded == 7


def test_a_counter_of_the_models_own_is_loaded() -> None:
    class Counting(nn.Module):
        def __init__(self, count: int) -> None:
            super().__init__()
            self.register_buffer("n_averaged", torch.tensor(count))

    for wrapped in (Counting(7).state_dict(), {"model.n_averaged": torch.tensor(7)}):
        module = Counting(0)
        assert load(module, wrapped).loaded == 1
        assert_holds(module, {"n_averaged": torch.tensor(7)})


LIGHTNING = {**state("model."), "loss.weight": torch.ones(5), "metric.total": torch.ones(())}


@pytest.mark.parametrize("content", [LIGHTNING, {"state_dict": LIGHTNING}])
def test_only_what_is_under_a_given_prefix_is_loaded_and_the_rest_is_counted(content: Any) -> None:
    module = net()
    found = load(module, content, Choice(prefix="model."))
    assert (found.loaded, found.outside, found.prefix) == (7, 2, "model.")
    assert "prefix 'model.' stripped, 2 outside the prefix left out" in str(found)
    assert_holds(module, state())


def test_wrappers_under_a_given_prefix_are_stripped_as_everywhere() -> None:
    found = load(net(), {"loss": torch.ones(1), **state("student.module._orig_mod.")}, Choice(prefix="student."))
    assert (found.prefix, found.outside) == ("student.module._orig_mod.", 1)


def test_tensors_outside_a_prefix_are_refused_with_the_option_that_leaves_them_out() -> None:
    message = refusal(net(), LIGHTNING)
    assert message.endswith("--prefix model. takes those under it and leaves the others out")
    assert refusal(net(), LIGHTNING, Choice(prefix="model")).endswith("leaves the others out")


def test_a_prefix_that_no_name_has_is_refused_with_the_names() -> None:
    message = refusal(net(), LIGHTNING, Choice(prefix="net."))
    assert message.startswith("--prefix 'net.': no name begins with it; they are model.0.weight, ")


def test_missing_unexpected_and_misshaped_tensors_are_all_listed() -> None:
    content = state() | {"extra.weight": torch.zeros(2), "0.weight": torch.zeros(4, 5)}
    content["1.num_batches_tracked"] = torch.zeros(())
    del content["0.bias"]
    message = refusal(net(), content)
    for part in (
        "the checkpoint's tensors are not those of Sequential: ",
        "1 missing (0.bias)",
        "1 unexpected (extra.weight)",
        "1 mis-shaped (0.weight [4, 5] for [4, 3])",
        "1 of another kind (1.num_batches_tracked float32 for int64)",
        "give the architecture that it was trained with (--model, --model-args)",
    ):
        assert part in message


def test_a_long_list_of_names_is_cut_with_the_number_left() -> None:
    content = state() | {f"extra{i}": torch.zeros(1) for i in range(11)}
    assert "11 unexpected (extra0, extra1," in refusal(net(), content)
    assert "extra7 and 3 more)" in refusal(net(), content)


def test_another_number_of_classes_is_told_with_the_argument_that_sets_it() -> None:
    five, seven = (nn.Sequential(nn.Linear(3, 4), nn.Linear(4, classes)) for classes in (5, 7))
    message = refusal(five, seven.state_dict())
    assert "2 mis-shaped (1.weight [7, 4] for [5, 4], 1.bias [7] for [5])" in message
    assert message.endswith("its '1' has 7 outputs: if these are classes, give --model-args num_classes=7")


@pytest.mark.parametrize("other", [nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 5)), nn.Sequential(nn.Linear(3, 4))])
def test_nothing_is_said_of_classes_where_more_than_the_head_differs(other: nn.Module) -> None:
    message = refusal(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5)), other.state_dict())
    assert "num_classes" not in message


def test_nothing_is_said_of_classes_where_shapes_agree() -> None:
    content = state() | {"0.weight": torch.zeros(4, 3, dtype=torch.int64)}
    message = refusal(net(), content)
    assert "1 of another kind (0.weight int64 for float32)" in message
    assert "num_classes" not in message


@pytest.mark.parametrize("kind", [torch.int64, torch.uint8, torch.bool])
def test_integers_are_not_taken_for_floats(kind: torch.dtype) -> None:
    content = state() | {"0.weight": torch.ones(4, 3).to(kind)}
    assert f"0.weight {str(kind).removeprefix('torch.')} for float32" in refusal(net(), content)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floats_become_float32_and_are_told(kind: torch.dtype) -> None:
    content = {name: held.to(kind) if held.is_floating_point() else held for name, held in state().items()}
    module = net()
    found = load(module, content)
    name = str(kind).removeprefix("torch.")
    assert found.dtypes == (name,)
    assert str(found) == f"7 of 7 tensors loaded, {name} turned into float32"
    assert_holds(module, {name: held.float() if name[:3] != "1.n" else held for name, held in content.items()})


def test_names_that_may_stay_initial_do_and_are_listed() -> None:
    content = state()
    del content["1.weight"], content["1.bias"]
    module = net()
    before = module[1].weight.detach().clone()
    found = load(module, content, Choice(partial=("1.weight", "1.b*")))
    assert (found.loaded, found.expected, found.initial) == (5, 7, ("1.weight", "1.bias"))
    assert str(found) == "5 of 7 tensors loaded, 2 LEFT AT THEIR INITIAL VALUE: 1.weight, 1.bias"
    assert torch.equal(module[1].weight, before)
    assert torch.equal(module[0].weight, content["0.weight"])


def test_a_name_that_may_stay_initial_is_loaded_where_the_file_has_it() -> None:
    found = load(net(), state(), Choice(partial=("*",)))
    assert (found.loaded, found.initial) == (7, ())


def test_a_head_of_another_shape_may_stay_initial() -> None:
    found = load(net(), state() | {"0.weight": torch.zeros(9, 3), "0.bias": torch.zeros(9)}, Choice(partial=("0.*",)))
    assert (found.loaded, found.initial) == (5, ("0.weight", "0.bias"))


def test_what_was_not_named_as_partial_is_still_missing() -> None:
    content = state()
    del content["1.weight"], content["1.bias"]
    message = refusal(net(), content, Choice(partial=("1.weight",)))
    assert "1 missing (1.bias)" in message
    assert message.endswith("say which may stay at their initial values: --allow-partial 1.bias")


@pytest.mark.parametrize("pattern", ["head.*", "0.weights", "", "0.WEIGHT"])
def test_a_pattern_that_matches_nothing_is_refused_with_the_names(pattern: str) -> None:
    message = refusal(net(), state(), Choice(partial=(pattern,)))
    assert message.startswith(f"--allow-partial {pattern!r}: matches no tensor of the model: 0.weight, 0.bias, ")


class Tied(nn.Module):
    """An embedding whose table is the head's weight too."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.table.weight


TABLE = torch.arange(15.0).reshape(5, 3)


@pytest.mark.parametrize("name", ["table.weight", "head.weight"])
def test_a_tied_name_that_the_file_leaves_out_is_filled_by_the_other(name: str) -> None:
    module = Tied()
    found = load(module, {name: TABLE})
    assert (found.loaded, found.expected, found.tied) == (2, 2, 1)
    assert str(found) == "2 of 2 tensors loaded, 1 of them tied to others"
    assert module.head.weight is module.table.weight
    assert torch.equal(module.head.weight, TABLE)


def test_a_tied_name_is_no_initial_one_though_it_may_be() -> None:
    found = load(Tied(), {"table.weight": TABLE}, Choice(partial=("head.*",)))
    assert (found.loaded, found.initial, found.tied) == (2, (), 1)


def test_tied_names_with_the_same_values_are_one_tensor_still() -> None:
    module = Tied()
    assert load(module, {"table.weight": TABLE, "head.weight": TABLE.clone()}).tied == 0
    assert module.head.weight is module.table.weight


def test_tied_names_with_different_values_are_refused_by_name() -> None:
    message = refusal(Tied(), {"table.weight": TABLE, "head.weight": TABLE + 1})
    assert message.startswith("'table.weight' and 'head.weight' are one tensor in the model, and have different values")


def test_a_tied_name_alone_is_still_missing_where_the_file_has_neither() -> None:
    assert "2 missing (table.weight, head.weight)" in refusal(Tied(), {"other": TABLE})


def test_names_that_a_module_has_outgrown_are_its_own_business() -> None:
    class Renamed(nn.Linear):
        """A layer whose weight was called `kernel` once."""

        def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
            if f"{prefix}kernel" in state_dict:
                state_dict[f"{prefix}weight"] = state_dict.pop(f"{prefix}kernel")
            super()._load_from_state_dict(state_dict, prefix, *rest)

    module, content = nn.Sequential(Renamed(3, 2)), {"0.kernel": torch.ones(2, 3), "0.bias": torch.ones(2)}
    assert load(module, content).loaded == 2
    assert torch.equal(module[0].weight, torch.ones(2, 3))
    old = {name: tensor for name, tensor in state().items() if name != "1.num_batches_tracked"}
    found = load(net(), old)
    assert (found.loaded, found.own) == (6, 1)  # BatchNorm has counted its batches since torch 0.4.1 only


def test_what_a_modules_own_hook_refuses_is_told_in_one_sentence() -> None:
    old = nn.InstanceNorm2d(4, affine=True, track_running_stats=True).state_dict()
    message = refusal(nn.InstanceNorm2d(4, affine=True), dict(old))
    assert message.startswith("the model refuses the checkpoint's tensors: ")
    assert "Unexpected running stats buffer(s)" in message


def test_layers_without_a_shape_yet_take_that_of_the_file() -> None:
    module = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d())
    assert load(module, state()).loaded == 7
    assert_holds(module, state())


def test_a_pickled_modules_tensors_go_into_the_module_that_was_asked_for() -> None:
    torch.manual_seed(0)
    theirs, module = net(), net()
    found = proof.load(module, Found(theirs, "model"))
    assert (found.loaded, found.wrapper) == (7, "model")
    assert_holds(module, theirs.state_dict())


UNUSUAL = {
    "sparse": lambda: torch.zeros(4, 3).to_sparse(),
    "csr": lambda: torch.eye(4, 3).to_sparse_csr(),
    "meta": lambda: torch.empty(4, 3, device="meta"),
    "nested": lambda: torch.nested.nested_tensor([torch.zeros(3), torch.zeros(3)]),
    "complex": lambda: torch.zeros(4, 3, dtype=torch.complex64),
    "quantised": lambda: torch.quantize_per_tensor(torch.zeros(4, 3), 0.1, 0, torch.qint8),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", UNUSUAL)
def test_tensors_that_are_not_dense_real_numbers_are_refused_by_name(kind: str) -> None:
    """A complex weight would lose half of itself without a word, and count as loaded."""
    message = refusal(net(), {"state_dict": state() | {"0.weight": UNUSUAL[kind]()}})
    kinds = "sparse, nested, meta, quantised or complex"
    assert message == f"tensors must be dense and hold real numbers; these are {kinds}: 0.weight"


def test_a_proof_of_everything_at_once_reads_as_one_sentence() -> None:
    found = Proof(
        loaded=8,
        expected=9,
        prefix="module.",
        wrapper="model_ema",
        why="--ema",
        initial=("head.bias",),
        tied=1,
        outside=2,
        dtypes=("bfloat16", "float16"),
    )
    assert str(found) == (
        "8 of 9 tensors loaded, from 'model_ema' (--ema), prefix 'module.' stripped, 1 of them tied to others, 2 "
        "outside the prefix left out, bfloat16 and float16 turned into float32, 1 LEFT AT THEIR INITIAL VALUE: "
        "head.bias"
    )


class Versioned(nn.Linear):
    """A layer whose old files hold its weight doubled, and which takes no file that does not say how old it is."""

    _version = 2

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
        if metadata.get("version") not in (1, 2):
            raise ValueError(f"version should be 1 or 2 instead of {metadata.get('version')}")
        super()._load_from_state_dict(state, prefix, metadata, *rest)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("prefix", ["", "module.", "model._orig_mod."])
def test_a_module_is_told_the_version_that_its_file_was_written_by(prefix: str) -> None:
    source: nn.Module = nn.Sequential(Versioned(3, 2))
    for name in reversed(prefix.split(".")[:-1]):
        source = nn.ModuleDict({name: source})
    found = load(nn.Sequential(Versioned(3, 2)), source.state_dict())
    assert (found.loaded, found.expected, found.prefix) == (2, 2, prefix)


def test_a_module_that_refuses_a_file_of_unknown_version_is_told_in_one_sentence() -> None:
    message = refusal(nn.Sequential(Versioned(3, 2)), dict(nn.Sequential(Versioned(3, 2)).state_dict()))
    assert "the model refuses the checkpoint's tensors: version should be 1 or 2 instead of None" in message


def test_what_the_modules_own_loading_fills_is_not_counted_as_loaded() -> None:
    held = dict(nn.BatchNorm1d(4).state_dict())  # without a version, as .safetensors files are
    del held["num_batches_tracked"]
    found = load(nn.BatchNorm1d(4), held)
    assert (found.loaded, found.expected, found.own) == (4, 5, 1)
    assert str(found) == "4 of 5 tensors loaded, 1 filled by the model's own loading"


def test_an_extra_state_of_any_kind_is_loaded_with_the_tensors() -> None:
    class Extra(nn.Linear):
        kept: Any = None

        def get_extra_state(self) -> Any:
            return {"v": 1}

        def set_extra_state(self, state: Any) -> None:
            self.kept = state

    module = Extra(3, 2)
    found = load(nn.Sequential(module), {f"0.{name}": value for name, value in Extra(3, 2).state_dict().items()})
    assert (found.loaded, found.expected, module.kept) == (3, 3, {"v": 1})


class Skips(nn.Linear):
    def load_state_dict(self, *rest: Any, **more: Any) -> Any:
        return None


class Fills(nn.Linear):
    """Takes a missing bias for one that it has."""

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        state.setdefault(f"{prefix}bias", self.bias.detach())
        super()._load_from_state_dict(state, prefix, *rest)  # type: ignore[no-untyped-call]


def test_a_module_whose_own_loading_leaves_tensors_aside_is_refused() -> None:
    message = refusal(Skips(3, 2), {"weight": torch.ones(2, 3), "bias": torch.ones(2)})
    assert "the model's own loading leaves 2 of the checkpoint's tensors aside (bias, weight)" in message


def test_an_initial_value_that_a_modules_own_loading_keeps_is_missing() -> None:
    assert "1 missing (0.bias)" in refusal(nn.Sequential(Fills(3, 2)), {"0.weight": torch.ones(2, 3)})


def test_whole_numbers_that_a_modules_dtype_does_not_hold_are_refused() -> None:
    module = nn.Module()
    module.register_buffer("count", torch.zeros(2, dtype=torch.uint8))
    assert load(module, {"count": torch.tensor([7, 255])}).loaded == 1
    message = refusal(module, {"count": torch.tensor([300, -1])})
    assert "count int64 for uint8, which does not hold its values" in message


def test_the_advice_on_classes_names_the_modules_own_parameter() -> None:
    class Net(nn.Module):
        def __init__(self, classes: int = 3) -> None:
            super().__init__()
            self.head = nn.Linear(2, classes)

    message = refusal(Net(), Net(classes=5).state_dict())
    assert "its 'head' has 5 outputs: if these are classes, give --model-args classes=5" in message
