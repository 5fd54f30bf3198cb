# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs a notebook in a process of its own, with the Python that runs kcensus."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, cast

import jupytext
import matplotlib.font_manager  # writes its cache of fonts here, and not while a cell runs
import nbformat
import papermill
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import DeadKernelError
from nbformat import NotebookNode
from papermill.exceptions import PapermillExecutionError

from kcensus.commands.notebook.library import Notebook, Value
from kcensus.limits.children import python
from kcensus.progress import Progress

assert matplotlib.font_manager


_SHARP = "--InlineBackend.figure_formats={'svg'}"
"""Plots are drawings, which are sharp on paper."""
_DISPLAY = "--InteractiveShellApp.extra_extensions=kcensus.commands.notebook.display"
_MAX_TEMPORARY = 64
"""Most bytes of the path of a directory for sockets, whose paths may have 107 bytes."""


class Stopped(Exception):
    """A cell of the notebook failed.

    :ivar error: type of the error
    :ivar message: its first line
    :ivar place: which cell it was
    :ivar partial: the notebook up to there; None if no cell had anything to show
    """

    def __init__(self, error: str, message: str, place: str, partial: NotebookNode) -> None:
        self.error, self.place = error, place
        self.message = message.strip().partition("\n")[0]
        outputs = [each for cell in partial.cells for each in cell.get("outputs", ())]
        is_worth_keeping = any(each.output_type != "error" for each in outputs)
        self.partial = partial if is_worth_keeping else None
        super().__init__(f"{place}: {error}: {self.message}")


class _KernelSpecs(KernelSpecManager):
    """Knows this interpreter only; another one may be registered under the same name."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(
            argv=[
                *python("from ipykernel.kernelapp import launch_new_instance as main; main()"),
                "-f",
                "{connection_file}",
                _SHARP,
                _DISPLAY,
                "--InteractiveShellApp.ignore_cwd=True",
            ],
            display_name="Python 3",
            language="python",
            # Neither reads the user's start-up files nor leaves anything in them.
            env={"IPYTHONDIR": self.data_dir},
        )


class _Run:
    """The process that runs a notebook, and whether Ctrl-C was pressed since its start.

    The exception of Ctrl-C may be dropped by libraries, or leave a process that is not known yet.
    """

    def __init__(self) -> None:
        self.manager: AsyncKernelManager | None = None
        self.is_starting = self.is_interrupted = False

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        self.is_interrupted = True
        if not self.is_starting:
            raise KeyboardInterrupt

    def check(self) -> None:
        if self.is_interrupted:
            raise KeyboardInterrupt

    def end(self) -> None:
        """End the process, which would still write to the temporary directory."""
        provisioner = self.manager.provisioner if self.manager else None
        process = getattr(provisioner, "process", None)
        if process is not None and process.poll() is None:
            # It leads a process group of its own.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def _running() -> Iterator[_Run]:
    """Yield a run, and end its process at the end of the context."""
    run = _Run()
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    handles = is_usual and threading.current_thread() is threading.main_thread()
    if handles:
        signal.signal(signal.SIGINT, run.interrupt)
    try:
        yield run
        run.check()
    finally:
        run.end()
        if handles:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def _kernel_manager(directory: str, run: _Run) -> type[AsyncKernelManager]:
    """Return a manager that reaches its process by sockets in a directory."""

    class Manager(AsyncKernelManager):
        transport = "ipc"
        connection_file = f"{directory}/kernel.json"
        data_dir = directory

        def _kernel_spec_manager_default(self) -> KernelSpecManager:
            return _KernelSpecs(data_dir=directory)

        # The class above overrides it in this way, too.
        async def start_kernel(self, **options: Any) -> None:  # type: ignore[override]
            # Drop messages of the process itself, such as those of an interrupt.
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            run.manager, run.is_starting = self, True
            try:
                await super().start_kernel(**quiet, **options)
            finally:
                run.is_starting = False
            run.check()

    return Manager


def prepared(notebook: Notebook, values: Mapping[str, Value]) -> NotebookNode:
    """Return a notebook with its parameters set, before it runs."""
    with _quiet():
        node = papermill.execute_notebook(_read(notebook), None, dict(values), prepare_only=True)
    return cast("NotebookNode", node)


def executed(notebook: Notebook, values: Mapping[str, Value], progress: Progress) -> NotebookNode:
    """Run a notebook and return it with its outputs.

    :raises Stopped: a cell failed
    """
    node = _read(notebook)
    with (
        _directory() as directory,
        _running() as run,
        progress.step(notebook.title, len(node.cells)) as step,
        _quiet(),
    ):
        output = Path(directory) / "notebook.ipynb"  # written after each cell
        place = ""

        def start(cell: NotebookNode, cell_index: int) -> None:
            nonlocal place
            run.check()
            place = f"cell {cell_index + 1} of {len(node.cells)}"
            step.advance()

        try:
            papermill.execute_notebook(
                node,
                # Papermill replaces {names} in a path.
                str(output).replace("{", "{{").replace("}", "}}"),
                dict(values),
                progress_bar=False,
                kernel_manager_class=_kernel_manager(directory, run),
                on_cell_start=start,
            )
        except PapermillExecutionError as error:
            raise Stopped(error.ename, error.evalue, place, _written(output)) from None
        except DeadKernelError:
            problem = "its process ended, probably for lack of memory; free memory, or use a "
            problem += "smaller target"
            raise Stopped("MemoryError", problem, place, _written(output)) from None
        return _written(output)


def _directory() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary directory with a path short enough for sockets."""
    usual = tempfile.gettempdir()
    parent = usual if len(os.fsencode(usual)) <= _MAX_TEMPORARY else "/tmp"
    return tempfile.TemporaryDirectory(prefix="kcensus-notebook-", dir=parent)


def _written(path: Path) -> NotebookNode:
    return cast("NotebookNode", nbformat.read(path, as_version=4))


def _read(notebook: Notebook) -> NotebookNode:
    node = cast("NotebookNode", jupytext.read(notebook.path))
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    node.metadata["kernelspec"] = spec
    return node


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the logs of libraries off the terminal; their errors are raised."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


# Of a wait that Ctrl-C left, asyncio complains whenever it is collected.
logging.getLogger("asyncio").addFilter(
    lambda record: not (record.exc_info and isinstance(record.exc_info[1], DeadKernelError))
)
