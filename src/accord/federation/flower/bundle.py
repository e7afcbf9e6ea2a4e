"""The Flower app of a study: its document, and modules that import accord's apps."""

from __future__ import annotations

from pathlib import Path

from ..document import StudyDocument

_PACKAGE = "accord_study"
_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "accord-study"
version = "1.0.0"
description = "A study of accord: {hash}"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "accord"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

[tool.flwr.app.config]
output = {output}
"""
_CLIENT = '''\
"""The app of a site, from the installed accord."""

from accord.federation.flower import client_app

app = client_app.app
'''
_SERVER = '''\
"""The app of the server, from the installed accord."""

from pathlib import Path

from accord.federation import StudyDocument
from accord.federation.flower.server_app import app_of

app = app_of(StudyDocument.read(Path(__file__).with_name("study.toml")))
'''


def write_app(study: StudyDocument, folder: Path, output: Path) -> None:
    """Write the Flower app of a study to a folder, for `flwr run`. The server stores results in `output`.

    Raises
    ------
    FileExistsError
        The folder is not empty.
    ValueError
        The study has no masks.
    """
    if not study.masks:
        raise ValueError("a study without masks travels by files only, as a server would see the numbers of each site")
    if folder.is_dir() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty: name another folder")
    package = folder / _PACKAGE
    package.mkdir(parents=True, exist_ok=True)
    quoted = '"' + str(output.resolve()).replace("\\", "\\\\").replace('"', '\\"') + '"'
    text = _PYPROJECT.format(hash=study.hash[:16], package=_PACKAGE, output=quoted)
    (folder / "pyproject.toml").write_text(text)
    (package / "__init__.py").write_text('"""A study of accord."""\n')
    (package / "client_app.py").write_text(_CLIENT)
    (package / "server_app.py").write_text(_SERVER)
    (package / "study.toml").write_text(study.text)
