"""The programs of the package."""

from __future__ import annotations

import os
import shutil
import sysconfig

from libdiesel import errors


def program(name: str, variable: str) -> str:
    """The path of a program: of an environment variable, of the package, else from PATH."""
    own = os.path.join(sysconfig.get_path("scripts"), name)
    found = os.environ.get(variable) or shutil.which(own) or shutil.which(name)
    if found is None:
        raise errors.LocalError(f"the program {name} is missing: name it in {variable} or PATH")
    return found
