"""A Python of its own in which penstock's own dependencies are installed, and nothing else."""

from __future__ import annotations

import sysconfig
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of that environment: links to what is installed here, and to this clone."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, with_pip=False, symlinks=True)
    version = sysconfig.get_python_version()
    packages = home / "lib" / f"python{version}" / "site-packages"
    for name in closure("penstock") | closure("packaging"):
        held = metadata.distribution(name)
        tops = {file.parts[0] for file in held.files or () if file.parts[0] not in ("..", "__pycache__")}
        for top in tops if name != "penstock" else {f"penstock-{held.version}.dist-info"}:
            (packages / top).symlink_to(Path(str(held.locate_file(top))))
    (packages / "clone.pth").write_text(f"{ROOT}\n")
    return home / "bin" / "python"


def closure(name: str, seen: tuple[str, ...] = ()) -> set[str]:
    """A package and all that it needs, extras aside."""
    found = {name}
    for text in metadata.requires(name) or ():
        requirement = Requirement(text)
        if (requirement.marker is None or requirement.marker.evaluate({"extra": ""})) and requirement.name not in seen:
            found |= closure(requirement.name, (*seen, name))
    return found
