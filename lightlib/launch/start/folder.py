"""The folder in which this program was started: it may change its working directory before the launch."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightlib.launch.start.hydra import original_folder
from lightlib.start_folder import remembered


def folder_of_program() -> str:
    """Return the folder from which the same command starts the same program.

    That is the working directory at `import lightlib`; or, if the program had changed it before, the folder in which
    its relative path leads to the running file. Hydra knows it as well.
    """
    if (of_hydra := original_folder()) is not None:
        return of_hydra
    main, at_import = sys.modules["__main__"], remembered()
    file: str | None = getattr(main, "__file__", None)
    spec = getattr(main, "__spec__", None)
    if file is None or not os.path.isabs(file):
        return at_import
    if spec is None:
        words = (word for word in sys.orig_argv[1:] if word.endswith(".py") and not os.path.isabs(word))
        names = list(map(os.path.normpath, words))
    else:
        names = [os.path.join(*spec.name.split(".")) + ".py"]
    for name in names:
        root = file.removesuffix(os.sep + name)
        if root != file and not Path(at_import, name).exists() and (spec is None or sys.path[:1] == [root]):
            return root
    return at_import


@contextmanager
def absolute_import_paths() -> Iterator[None]:
    """Meanwhile the relative entries of `sys.path` are absolute, for new interpreters in another directory."""
    before, folder = list(sys.path), folder_of_program()
    sys.path[:] = [
        os.path.join(folder, entry) if entry and not os.path.isabs(entry) and Path(folder, entry).exists() else entry
        for entry in before
    ]
    try:
        yield
    finally:
        sys.path[:] = before
