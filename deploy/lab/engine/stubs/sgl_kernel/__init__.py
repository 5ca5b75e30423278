"""Test-only import stub: SGLang imports sgl_kernel at top level, and PyPI has CUDA builds only.

Every attribute is a function that raises when called, every submodule exists. The exception is
`sgl_kernel.scalar_type`, whose absence SGLang handles itself (an ImportError there is what it expects).
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

__version__ = "0.4.2+ddtree.lab.stub"

ABSENT = frozenset({"sgl_kernel.scalar_type"})


def _refusing(qualified: str) -> Callable[..., NoReturn]:
    def kernel(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"{qualified} was called, but sgl_kernel is a stub of the ddtree-ops lab")

    kernel.__name__ = kernel.__qualname__ = qualified.rsplit(".", 1)[-1]
    return kernel


class _StubModule(types.ModuleType):
    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _refusing(f"{self.__name__}.{name}")


class _StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith("sgl_kernel.") or fullname in ABSENT:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _StubModule(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing to run: the module is made of `_StubModule.__getattr__`."""


sys.meta_path.append(_StubFinder())


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)
    return _refusing(f"sgl_kernel.{name}")
