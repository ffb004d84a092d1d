"""The stubs of the native half have its docstrings, for editors. DIESEL_WRITE_GENERATED=1 writes them anew."""

import ast
import inspect
import os
import textwrap
from pathlib import Path

from libdiesel import _native

STUBS = Path(__file__).parents[1] / "libdiesel" / "_native.pyi"
WIDTH = 110


def with_docstrings(text: str) -> str:
    """Stubs with the docstrings of the native half in the place of theirs."""
    lines = text.splitlines()
    nodes = []
    for top in ast.parse(text).body:
        if isinstance(top, ast.ClassDef):
            nodes.append((top, getattr(_native, top.name)))
            nodes += [
                (one, getattr(getattr(_native, top.name), one.name))
                for one in top.body if isinstance(one, ast.FunctionDef) and not one.name.startswith("__")
            ]
        elif isinstance(top, ast.FunctionDef):
            nodes.append((top, getattr(_native, top.name)))
    seen = set()
    edits = []
    for node, native in nodes:
        doc = inspect.getdoc(native)
        if not doc or native in seen:
            continue
        seen.add(native)
        indent = " " * (node.col_offset + 4)
        quoted = [f'{indent}"""{doc}"""'] if "\n" not in doc and len(doc) < WIDTH - 10 else [
            *textwrap.indent(f'"""{doc}', indent, lambda line: bool(line.strip())).splitlines(), f'{indent}"""',
        ]
        edits.append((node, quoted))
    for node, quoted in reversed(edits):
        first = node.body[0]
        is_string = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
        if is_string:
            lines[first.lineno - 1 : first.end_lineno] = quoted
        elif isinstance(node, ast.ClassDef):
            start = min([first.lineno, *(one.lineno for one in getattr(first, "decorator_list", []))])
            lines[start - 1 : start - 1] = [*quoted, ""]
        else:
            at = node.end_lineno - 1
            lines[at : at + 1] = [lines[at].removesuffix(" ..."), *quoted]
    return "\n".join(lines) + "\n"


def test_the_stubs_have_the_docstrings_of_the_native_half():
    text = STUBS.read_text()
    wanted = with_docstrings(text)
    if os.environ.get("DIESEL_WRITE_GENERATED"):
        STUBS.write_text(wanted)
    assert text == wanted, "DIESEL_WRITE_GENERATED=1 writes the docstrings anew"
    assert text.count('"""') > 80
