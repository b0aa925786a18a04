"""Small architectures that each hold one thing which exporters get wrong; a user's file, as --model takes it.

`b` is the batch, `n` a length. Every net answers each row for itself unless it says otherwise.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class LstmClassifier(nn.Module):
    """tokens int64 `[b, n]`, lengths int64 `[b]`, 1 to n -> logits `[b, classes]`: the state at each row's length."""

    def __init__(self, vocabulary: int = 100, width: int = 32, classes: int = 5) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        states = self.lstm(self.embedding(tokens))[0]
        last = (lengths - 1).view(-1, 1, 1).expand(-1, 1, states.shape[2])
        return self.head(states.gather(1, last).squeeze(1))


class GruClassifier(nn.Module):
    """features float32 `[b, n, inside]` -> logits `[b, classes]`, from the last state of the upper layer."""

    def __init__(self, inside: int = 12, width: int = 32, classes: int = 5) -> None:
        super().__init__()
        self.gru = nn.GRU(inside, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, features: Tensor) -> Tensor:
        return self.head(self.gru(features)[1][-1])


class Refine(nn.Module):
    """state float32 `[b, width]`, steps int64 `[b]` -> `[b, width]`: each row is refined as often as its steps say.

    The loop's count is the largest of the steps, and the branch is on the mean over all rows: the answers of one row
    depend on the others.
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.again = nn.Linear(width, width)

    def forward(self, state: Tensor, steps: Tensor) -> Tensor:
        for step in range(int(steps.max())):
            refined = torch.tanh(self.again(state))
            state = torch.where((step < steps).unsqueeze(1), refined, state)
        if bool(state.mean() > 0):
            return state * 2
        return state - 1


class ValuesDecide(nn.Module):
    """x float32 `[b, 8]`, steps int64 `[b]`, 0 to 6 -> `[b, classes]`: a branch and a loop that values decide."""

    def __init__(self, width: int = 16, classes: int = 4) -> None:
        super().__init__()
        self.enter = nn.Linear(8, width)
        self.refine = Refine(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, steps: Tensor) -> Tensor:
        return self.head(self.refine(self.enter(x), steps))


class ValuesDecideInside(ValuesDecide):
    """The same; but `**` keeps torch.jit.script from this module, and the values decide in one that it takes."""

    def forward(self, x: Tensor, steps: Tensor) -> Tensor:
        given = {"state": self.enter(x), "steps": steps}
        return self.head(self.refine(**given))


class UnusedArgument(nn.Module):
    """x float32 `[b, 8]`, unused float32 `[b, 3]`, y float32 `[b, 8]` -> `[b, classes]`."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, classes), nn.Linear(8, classes)

    def forward(self, x: Tensor, unused: Tensor, y: Tensor) -> Tensor:
        return self.left(x) - self.right(y)


class KeywordOnly(nn.Module):
    """x float32 `[b, 8]`; by keyword only: scale float32 `[b]`, offset float32 `[b, classes]` -> `[b, classes]`."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.layer = nn.Linear(8, classes)

    def forward(self, x: Tensor, *, scale: Tensor, offset: Tensor) -> Tensor:
        return self.layer(x) * scale.unsqueeze(1) + offset


class NestedTuples(nn.Module):
    """x float32 `[b, 8]` -> (logits, (hidden, {"low", "high"})), each with b rows."""

    def __init__(self, width: int = 16, classes: int = 4) -> None:
        super().__init__()
        self.enter, self.head = nn.Linear(8, width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, dict[str, Tensor]]]:
        hidden = torch.tanh(self.enter(x))
        # A dictionary keeps the model's order, which is not the alphabet's here.
        ends = {"low": hidden.amin(dim=1), "high": hidden.amax(dim=1)}
        return self.head(hidden), (hidden, ends)


class NestedDicts(nn.Module):
    """x float32 `[b, 8]` -> {"scores": {"logits", "chances"}, "inside": {"hidden"}}, each with b rows."""

    def __init__(self, width: int = 16, classes: int = 4) -> None:
        super().__init__()
        self.enter, self.head = nn.Linear(8, width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> dict[str, dict[str, Tensor]]:
        hidden = torch.relu(self.enter(x))
        logits = self.head(hidden)
        return {"scores": {"logits": logits, "chances": logits.softmax(dim=1)}, "inside": {"hidden": hidden}}


class Norm1d(nn.Module):
    """signal float32 `[b, 4, n]` -> logits `[b, classes]`: BatchNorm after Conv1d and, over `[b, width]`, Linear."""

    def __init__(self, width: int = 16, classes: int = 5) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(4, width, 3, padding=1, bias=False),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Conv1d(width, width, 3, stride=2, padding=1),
            nn.BatchNorm1d(width, eps=1e-3),
            nn.ReLU(),
        )
        self.neck = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU())
        self.head = nn.Linear(width, classes)

    def forward(self, signal: Tensor) -> Tensor:
        return self.head(self.neck(self.body(signal).mean(dim=2)))


class Norm2d(nn.Module):
    """image float32 `[b, 3, height, width]` -> logits `[b, classes]`.

    The first BatchNorm has no layer before it and the last is read twice over, so that neither folds away.
    """

    def __init__(self, width: int = 16, classes: int = 5) -> None:
        super().__init__()
        self.enter = nn.BatchNorm2d(3)
        self.conv1 = nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm3 = nn.BatchNorm2d(width, affine=False)
        self.head = nn.Linear(width, classes)

    def forward(self, image: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(self.enter(image))))
        x = x + torch.relu(self.norm2(self.conv2(x)))
        y = self.conv3(x)
        return self.head((self.norm3(y) + torch.sigmoid(y)).mean(dim=(2, 3)))


class Norm3d(nn.Module):
    """volume float32 `[b, 1, 8, 16, 16]` -> logits `[b, classes]`."""

    def __init__(self, width: int = 8, classes: int = 5) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv3d(1, width, 3, padding=1, bias=False),
            nn.BatchNorm3d(width),
            nn.ReLU(),
            nn.MaxPool3d(2),
            nn.Conv3d(width, 2 * width, 3, padding=1),
            nn.BatchNorm3d(2 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool3d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(2 * width, classes)

    def forward(self, volume: Tensor) -> Tensor:
        return self.head(self.body(volume))


class GroupedConvolutions(nn.Module):
    """image float32 `[b, 3, 32, 32]` -> logits `[b, classes]`: in groups, depthwise, dilated, with a multiplier."""

    def __init__(self, width: int = 16, classes: int = 5) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU6(),
            nn.Conv2d(width, width, 3, padding=2, dilation=2, groups=width, bias=False),
            nn.BatchNorm2d(width),
            nn.Hardswish(),
            nn.Conv2d(width, 2 * width, (1, 3), padding=(0, 1), groups=4),
            nn.BatchNorm2d(2 * width),
            nn.SiLU(),
            nn.Conv2d(2 * width, 4 * width, 3, padding="same", groups=2 * width),
            nn.BatchNorm2d(4 * width),
            nn.ReLU(),
        )
        self.head = nn.Linear(4 * width, classes)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.body(image).mean(dim=(2, 3)))


class TransposedConvolutions(nn.Module):
    """features float32 `[b, 8, 6, 6]` -> image `[b, 2, 24, 24]`: transposed in groups, each with a norm."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.ConvTranspose2d(width, 3 * width, 3, stride=2, padding=1, output_padding=1, groups=2, bias=False),
            nn.BatchNorm2d(3 * width),
            nn.LeakyReLU(0.1),
            nn.ConvTranspose2d(3 * width, 2 * width, 4, stride=2, padding=1, groups=4),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
        )
        self.head = nn.Conv2d(2 * width, 2, 1)

    def forward(self, features: Tensor) -> Tensor:
        return self.head(self.body(features))


class SyncNorm(nn.Module):
    """image float32 `[b, 3, 16, 16]` -> logits `[b, classes]`, with the norm that training on many GPUs leaves."""

    def __init__(self, width: int = 16, classes: int = 5) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False),
            nn.SyncBatchNorm(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride=2, padding=1),
            nn.SyncBatchNorm(width),
            nn.ReLU(),
        )
        self.head = nn.Linear(width, classes)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.body(image).mean(dim=(2, 3)))


class RepVggBlock(nn.Module):
    """A 3x3, a 1x1 and, where the shape stays, an identity branch, each with a BatchNorm; `[b, inside, h, w]`.

    `switch_to_deploy` makes one 3x3 convolution of them: Ding et al., "RepVGG" (2021), section 3.3.
    """

    def __init__(self, inside: int, outside: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.inside, self.groups, self.stride = inside, groups, stride
        self.dense = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, padding=1, groups=groups, bias=False), nn.BatchNorm2d(outside)
        )
        self.point = nn.Sequential(
            nn.Conv2d(inside, outside, 1, stride, groups=groups, bias=False), nn.BatchNorm2d(outside)
        )
        self.same = nn.BatchNorm2d(inside) if inside == outside and stride == 1 else None

    def forward(self, x: Tensor) -> Tensor:
        if hasattr(self, "deployed"):
            return torch.relu(self.deployed(x))
        y = self.dense(x) + self.point(x)
        if self.same is not None:
            y = y + self.same(x)
        return torch.relu(y)

    def switch_to_deploy(self) -> None:
        """Put one convolution in the place of the branches; what they were is gone."""
        if hasattr(self, "deployed"):
            return
        kernel, bias = _folded(self.dense[0].weight, self.dense[1])
        point, shift = _folded(functional.pad(self.point[0].weight, [1, 1, 1, 1]), self.point[1])
        kernel, bias = kernel + point, bias + shift
        if self.same is not None:
            each = self.inside // self.groups
            unit = torch.zeros(self.inside, each, 3, 3, dtype=kernel.dtype, device=kernel.device)
            rows = torch.arange(self.inside)
            unit[rows, rows % each, 1, 1] = 1
            same, shift = _folded(unit, self.same)
            kernel, bias = kernel + same, bias + shift
        self.deployed = nn.Conv2d(self.inside, len(bias), 3, self.stride, padding=1, groups=self.groups)
        self.deployed.weight, self.deployed.bias = nn.Parameter(kernel), nn.Parameter(bias)
        del self.dense, self.point, self.same


def _folded(weight: Tensor, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """A convolution's weight and bias with the norm after it taken in."""
    scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    return (weight * scale.view(-1, 1, 1, 1)).detach(), (norm.bias - norm.running_mean * scale).detach()


class RepVgg(nn.Module):
    """image float32 `[b, 3, 32, 32]` -> logits `[b, classes]`, as it was trained: with all branches."""

    def __init__(self, width: int = 16, classes: int = 5) -> None:
        super().__init__()
        self.body = nn.Sequential(
            RepVggBlock(3, width, stride=2),
            RepVggBlock(width, width),
            RepVggBlock(width, width, groups=2),
            RepVggBlock(width, 2 * width, stride=2),
            RepVggBlock(2 * width, 2 * width),
        )
        self.head = nn.Linear(2 * width, classes)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.body(image).mean(dim=(2, 3)))


class TiedLanguageModel(nn.Module):
    """ids int64 `[b, n]`, n up to 64 -> logits `[b, n, vocabulary]`; the head's weight is the embedding's."""

    def __init__(self, vocabulary: int = 100, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(64, width) / 10)
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.places[: ids.shape[1]]
        parts = self.attention(self.before(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return self.head(self.after(x))


class MixedInputs(nn.Module):
    """kind int64 `[b]`, 0 to 9, flags bool `[b, 4]`, x float32 `[b, 8]` -> logits `[b, classes]`."""

    def __init__(self, width: int = 16, classes: int = 5) -> None:
        super().__init__()
        self.kinds = nn.Embedding(10, width)
        self.enter, self.marks = nn.Linear(8, width), nn.Linear(4, width)
        self.head = nn.Linear(width, classes)

    def forward(self, kind: Tensor, flags: Tensor, x: Tensor) -> Tensor:
        hidden = self.kinds(kind) + self.marks(flags.to(x.dtype)) + self.enter(x)
        hidden = torch.where(flags.any(dim=1, keepdim=True), torch.relu(hidden), hidden)
        return self.head(hidden)


class EncoderClassifier(nn.Module):
    """tokens int64 `[b, n]`, lengths int64 `[b]`, 1 to n -> logits `[b, classes]`: nn.TransformerEncoder, padded."""

    def __init__(self, vocabulary: int = 100, width: int = 32, classes: int = 5) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, nhead=4, dim_feedforward=64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        padded = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0) >= lengths.unsqueeze(1)
        states = self.encoder(self.embedding(tokens), src_key_padding_mask=padded)
        kept = states.masked_fill(padded.unsqueeze(2), 0.0)
        return self.head(kept.sum(dim=1) / lengths.unsqueeze(1))
