# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs a notebook in a process of its own, with the Python that runs kcensus."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
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
from papermill.exceptions import PapermillExecutionError

from kcensus.actions.notebooks.library import Notebook, Value
from kcensus.progress import Progress

assert matplotlib.font_manager


_SHARP = "--InlineBackend.figure_formats={'svg'}"
"""Plots are drawings, which are sharp on paper."""
_TITLES = "--InteractiveShellApp.extra_extensions=kcensus.actions.notebooks.titles"
"""The text of a plot is its title."""
_WITHOUT_DIRECTORY = "import sys; sys.path[:] = filter(None, sys.path); "
"""Python statements after which nothing is imported from the current directory: as that of a
customer's dump, it may have a ``drgn.py`` of its own."""
_MAX_TEMPORARY = 64
"""Bytes of the path of a directory for sockets, whose paths may have 107 bytes."""


class Stopped(Exception):
    """A cell of the notebook failed.

    :ivar error: type of the error
    :ivar message: its first line
    :ivar place: which cell it was
    :ivar partial: the notebook up to there; None if no cell had anything to show
    """

    def __init__(
        self, error: str, message: str, place: str, partial: nbformat.NotebookNode
    ) -> None:
        self.error, self.place = error, place
        self.message = message.strip().partition("\n")[0]
        outputs = [each for cell in partial.cells for each in cell.get("outputs", ())]
        is_worth_keeping = any(each.output_type != "error" for each in outputs)
        self.partial = partial if is_worth_keeping else None
        super().__init__(f"{place}: {error}: {self.message}")


class _KernelSpecs(KernelSpecManager):
    """Knows this interpreter only; what is registered under the same name may be another one."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(
            argv=[
                *python("from ipykernel.kernelapp import launch_new_instance as main; main()"),
                "-f",
                "{connection_file}",
                _SHARP,
                _TITLES,
                "--InteractiveShellApp.ignore_cwd=True",
            ],
            display_name="Python 3",
            language="python",
            # Neither reads the user's start-up files nor leaves anything in them.
            env={"IPYTHONDIR": self.data_dir},
        )


def python(statements: str) -> list[str]:
    """Return a command that runs statements, without imports from the current directory."""
    return [sys.executable, "-c", _WITHOUT_DIRECTORY + statements]


class _Run:
    """The process that runs a notebook, and whether Ctrl-C was pressed since it starts.

    The exception of Ctrl-C alone is not enough: raised while the process starts, it would leave a
    process that is not known, and libraries may drop it.
    """

    def __init__(self) -> None:
        self.manager: AsyncKernelManager | None = None
        self.is_starting = self.is_interrupted = False

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Handle SIGINT."""
        self.is_interrupted = True
        if not self.is_starting:
            raise KeyboardInterrupt

    def check(self) -> None:
        """Raise the exception of Ctrl-C if it was pressed."""
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
    """Yield what a process is started in; at the end of the context the process has ended."""
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
    """Return what starts the process, which is reached by sockets in a directory."""

    class Manager(AsyncKernelManager):
        transport = "ipc"
        connection_file = f"{directory}/kernel.json"
        data_dir = directory

        def _kernel_spec_manager_default(self) -> KernelSpecManager:
            return _KernelSpecs(data_dir=directory)

        # The class above overrides it in this way, too.
        async def start_kernel(self, **options: Any) -> None:  # type: ignore[override]
            # Of no interest: what the process itself says, such as that it is interrupted.
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            run.manager, run.is_starting = self, True
            try:
                await super().start_kernel(**quiet, **options)
            finally:
                run.is_starting = False
            run.check()

    return Manager


def prepared(notebook: Notebook, values: Mapping[str, Value]) -> nbformat.NotebookNode:
    """Return a notebook with its parameters set, before it runs."""
    with _quiet():
        node = papermill.execute_notebook(_read(notebook), None, dict(values), prepare_only=True)
    return cast("nbformat.NotebookNode", node)


def executed(
    notebook: Notebook, values: Mapping[str, Value], progress: Progress
) -> nbformat.NotebookNode:
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

        def start(cell: nbformat.NotebookNode, cell_index: int) -> None:
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
            problem = "the process that ran it ended; is there enough free memory?"
            raise Stopped("MemoryError", problem, place, _written(output)) from None
        return _written(output)


def _directory() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary directory whose path is short enough for sockets."""
    usual = tempfile.gettempdir()
    parent = usual if len(os.fsencode(usual)) <= _MAX_TEMPORARY else "/tmp"
    return tempfile.TemporaryDirectory(prefix="kcensus-notebook-", dir=parent)


def _written(path: Path) -> nbformat.NotebookNode:
    return cast("nbformat.NotebookNode", nbformat.read(path, as_version=4))


def _read(notebook: Notebook) -> nbformat.NotebookNode:
    node = cast("nbformat.NotebookNode", jupytext.read(notebook.path))
    node.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
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


def _concerns_us(record: logging.LogRecord) -> bool:
    """Return False for what asyncio says of a wait that Ctrl-C left, whenever it is collected."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, DeadKernelError)


logging.getLogger("asyncio").addFilter(_concerns_us)
