"""Networks of the user's own: trained however they are called and answer, or refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from penstock import cli
from penstock.errors import PenstockError
from penstock.figures import Classification
from penstock.train import jobs, loop, recipe
from penstock.train.recipe import Recipe

NETS = """
import sys

import torch
from torch import nn

class Plain(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.linear = nn.Linear(64, classes)
    def forward(self, pixels):
        return self.linear(pixels.flatten(1))

class ByName(Plain):
    def forward(self, *, image):
        return super().forward(image)

class Two(Plain):
    def forward(self, x):
        logits = super().forward(x)
        return logits, logits.softmax(1)

class Named(Plain):
    def forward(self, x):
        return {"logits": super().forward(x)}

class Summed(Plain):
    def forward(self, x):
        logits = super().forward(x)
        return logits, logits.sum()

class Mean(Plain):
    def forward(self, x):
        return super().forward(x).mean()

class Answers(Plain):
    def forward(self, x):
        return super().forward(x).argmax(1)

class Detached(Plain):
    def forward(self, x):
        return super().forward(x).detach()

class Fixed(nn.Module):
    def forward(self, x):
        return x.flatten(1)[:, :10]

class Lazy(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.head = nn.LazyLinear(classes)
    def forward(self, x):
        return self.head(x.flatten(1))

class Deep(Plain):
    def forward(self, x):
        return super().forward(x)[..., None]

class TwoClasses(Plain):
    def __init__(self):
        super().__init__(2)

class Grows(Plain):
    def __init__(self, classes=10):
        super().__init__(classes)
        self.register_buffer("seen", torch.zeros(0, 64))
    def forward(self, x):
        if self.training:
            self.seen = torch.cat([self.seen, x.flatten(1).detach()])
        return super().forward(x)

class Registers(Plain):
    def forward(self, x):
        self.register_buffer("mask", torch.ones(64))
        return super().forward(x)

class Spare(Plain):
    def __init__(self, classes=10):
        super().__init__(classes)
        self.spare = nn.Linear(3, 3)

class Drops(Plain):
    def __init__(self, classes=10):
        super().__init__(classes)
        self.beside = nn.Linear(64, classes)
    def forward(self, x):
        logits = super().forward(x)
        return logits + self.beside(x.flatten(1)) if torch.rand(()) < 0.5 else logits

class Exits(Plain):
    def forward(self, x):
        if self.training:
            sys.exit(3)
        return super().forward(x)

class Fails(Plain):
    def forward(self, image):
        if self.training:
            raise KeyError("missing")
        return super().forward(image)
"""


def job(folder: Path, name: str) -> Recipe:
    (folder / "nets.py").write_text(NETS)
    model = f'model={{target="{folder / "nets.py"}:{name}"}}'
    return recipe.load("digits", [model, "epochs=2", "optim.lr=0.05", "track.tensorboard=false"])


@pytest.mark.parametrize("name", ["Plain", "ByName", "Two", "Named"])
def test_a_network_of_the_user_s_own_is_trained_and_scored(name: str, tmp_path: Path) -> None:
    trained = loop.train(job(tmp_path, name), tmp_path / "run", progress=False)
    assert isinstance(trained.figures, Classification)
    assert trained.figures.accuracy > 0.8
    assert trained.report is not None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (["model.kwargs.widht=[8]"], r"recipe digits: model.target .* --set model.kwargs.NAME=VALUE"),
        (
            ["model.kwargs.widths=[0]"],
            r"recipe digits: .*widths is \[0\]; it must be a list of whole numbers, at least 1 each, as in \[8",
        ),
        (['model.target="no.such:Net"'], r"recipe digits: model.target no.such: cannot be imported"),
    ],
)
def test_a_network_that_cannot_be_made_is_told_in_a_recipe_s_words(changes: list[str], told: str) -> None:
    with pytest.raises(PenstockError, match=told) as failed:
        jobs.prepare(recipe.load("digits", changes))
    assert "--model" not in str(failed.value)
    assert "--input" not in str(failed.value)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Summed", r"the network's output .* is not one for each row"),
        ("Mean", r"the network's first output is .*float32\[\]; it must be a row of numbers for each sample"),
        ("Deep", r"the network's first output is .*float32\[batch,10,1\]; it must be a row of numbers for each sample"),
        (
            "TwoClasses",
            r"^recipe digits: model.target .*nets.py:TwoClasses answers .*float32\[batch,2\]; the labels of train go "
            r"up to 9, and each class from 0 takes a number: it must answer \[batch,10\]: change the class, "
            "which is told how many",
        ),
        (
            "Lazy",
            r"^recipe digits: head \(LazyLinear\) has weights without a shape yet: .*give the layer its input size",
        ),
        (
            "Grows",
            r"nets.py:Grows: seen is of shape \[0, 64\] when the network is built, and of shape \[64, 64\] once it has",
        ),
        ("Registers", r"mask is not there when the network is built, and of shape \[64\] once it has learnt"),
        ("Answers", r"the network's first output is .*int64\[batch\]; it must be a row of numbers for each sample"),
        ("Detached", "does not depend on a parameter that is trained"),
        ("Fixed", "the network, Fixed, has no parameter to train"),
    ],
)
def test_a_network_that_cannot_learn_is_refused_in_a_sentence(name: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match=told):
        loop.train(job(tmp_path, name), tmp_path / "run", progress=False)


def test_its_checkpoint_predicts_once_the_network_is_named(tmp_path: Path) -> None:
    recipe_ = job(tmp_path, "Plain")
    best = str(loop.train(recipe_, tmp_path / "run", progress=False).best)
    Image.new("L", (8, 8)).save(tmp_path / "scan.png")
    words = ["predict", best, str(tmp_path / "scan.png")]
    refused = CliRunner().invoke(cli.app, words)
    assert isinstance(refused.exception, PenstockError)
    assert str(refused.exception).endswith(f"--model {recipe_.model.target}")
    answered = CliRunner().invoke(cli.app, [*words, "--model", recipe_.model.target])
    assert answered.exit_code == 0, answered.exception
    assert "scan.png" in answered.output


def test_a_checkpoint_of_a_librarys_network_needs_no_word_more(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    changes = ["epochs=1", 'model={target="timm:test_resnet", kwargs={in_chans=1}}']
    best = loop.train(recipe.load("digits", changes), tmp_path / "run", progress=False).best
    scored = CliRunner().invoke(cli.app, ["eval", str(best)])
    assert scored.exit_code == 0, scored.exception
    assert "% correct" in scored.output
    exported = CliRunner().invoke(cli.app, ["export", "--format", "onnx", "--output", str(tmp_path), str(best)])
    assert exported.exit_code == 0, exported.exception
    assert (tmp_path / "digits-onnx-fp32/1/penstock.json").is_file()


def test_an_error_in_its_code_is_told_with_its_line_and_where_the_traceback_is(tmp_path: Path) -> None:
    for name, statement, told in (
        ("Fails", 'raise KeyError("missing")', "KeyError: 'missing'"),
        ("Exits", "sys.exit(3)", "SystemExit: 3"),
    ):
        line = NETS.splitlines().index(f"            {statement}") + 1
        with pytest.raises(PenstockError) as failed:
            loop.train(job(tmp_path, name), tmp_path / "run", progress=False)
        log, code = tmp_path / "run/logs/run.log", tmp_path / "nets.py"
        assert str(failed.value) == (f"model.target: {code}, line {line}, in forward: {told}; {log} has the traceback")
        assert statement in log.read_text()


@pytest.mark.parametrize(
    ("name", "freeze", "left"),
    [
        ("Plain", (), []),
        ("Spare", (), ["spare.weight", "spare.bias"]),
        ("Spare", ("spare.*",), []),
        ("Drops", (), ["beside.weight", "beside.bias"]),
        ("Fails", (), []),
        ("Exits", (), []),
    ],
)
def test_parameters_that_a_batch_does_not_use_are_found_on_a_copy(
    name: str, freeze: tuple[str, ...], left: list[str], tmp_path: Path
) -> None:
    wanted = job(tmp_path, name)
    prepared = jobs.prepare(wanted.model_copy(update={"optim": wanted.optim.model_copy(update={"freeze": freeze})}))
    drawn = torch.random.get_rng_state()
    assert jobs.unused(prepared) == left
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert all(held.grad is None and held.requires_grad for held in prepared.net.parameters())
