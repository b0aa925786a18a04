"""How far from the head of a network each of its parameters lies, counted in blocks."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from penstock.errors import require

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def depths(net: nn.Module) -> dict[str, int]:
    """The depth of each parameter: 0 in the head, 1 in the last block, and one more for each block before.

    - timm's networks say themselves which layer a parameter belongs to, in `group_matcher`.
    - In others, blocks are the elements of Sequential, ModuleList and ModuleDict that are made of layers themselves,
      wherever they stand, in the order in which they were registered: the blocks of a residual network's stages, the
      layers of a transformer. What comes before the first is the stem, below all of them; what comes after the last is
      the head, which is the last block where nothing does; what stands between two goes with the one before it.
    - Where there are no such blocks, as in an MLP, each layer that has a matrix is one, and the last is the head. The
      parallel layers of one ModuleList, such as TextCNN's convolutions, are one.
    """
    if callable(getattr(net, "group_matcher", None)):
        numbers = _matched(net)
    else:
        blocks = {prefix: number for number, prefix in enumerate(_blocks(net), 1)}
        numbers = _by_blocks(net, blocks) if blocks else _by_layers(net)
    head = max(numbers.values(), default=0)
    return {name: head - number for name, number in numbers.items()}


def _matched(net: nn.Module) -> dict[str, int]:
    require("timm", "models", "a network with a group_matcher")
    from timm.models import group_parameters

    found: dict[str, int] = group_parameters(net, net.group_matcher(coarse=False), reverse=True)  # type: ignore[operator]
    return found


def _blocks(module: nn.Module, prefix: str = "", listed: bool = False) -> Iterator[str]:
    """The names of the blocks; `listed` says that the module is an element of a container."""
    nested = isinstance(module, _CONTAINERS) and any(_made_of_layers(child) for child in module.children())
    if listed and not nested and _made_of_layers(module):
        yield prefix
        return
    for name, child in module.named_children():
        if name != "parametrizations":  # where torch keeps the parts of one weight, in containers
            yield from _blocks(child, f"{prefix}.{name}" if prefix else name, isinstance(module, _CONTAINERS))


def _made_of_layers(module: nn.Module) -> bool:
    return any(True for child in module.children() for _ in child.parameters())


def _by_blocks(net: nn.Module, blocks: dict[str, int]) -> dict[str, int]:
    """The number of each parameter's block: 0 before the first, one more than the last's behind it."""
    numbers, current = {}, 0
    for name, _ in net.named_parameters():
        parts = name.split(".")
        held = [blocks[place] for end in range(len(parts)) if (place := ".".join(parts[:end])) in blocks]
        if held:
            current = held[0]
        elif current == len(blocks):
            current += 1
        numbers[name] = current
    return numbers


def _by_layers(net: nn.Module) -> dict[str, int]:
    """The number of each parameter's layer, where a layer begins with a matrix."""
    numbers, current, before = {}, -1, None
    parallel = {name for name, module in net.named_modules() if isinstance(module, nn.ModuleList)}
    for place, module in net.named_modules():
        own = dict(module.named_parameters(place, recurse=False))
        parent = place.rpartition(".")[0]
        if any(parameter.ndim > 1 for parameter in own.values()):
            beside = parent in parallel and parent == before
            current, before = current + (not beside), parent
        numbers.update(dict.fromkeys(own, max(current, 0)))
    return numbers
