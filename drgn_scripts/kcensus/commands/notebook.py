# SPDX-License-Identifier: LGPL-2.1-or-later
"""``kcensus notebook``: a capacity report with charts, and other notebooks."""

from __future__ import annotations

from pathlib import Path

import click

from kcensus.actions import action
from kcensus.commands.shared.options import command

_HELP = """Run a notebook that comes with kcensus on your own kernels, or open it.

A notebook explains what it shows, with charts: where the memory of a machine is, what a patch
changed, what grows over time. Without NAME, list the notebooks, their targets and their parameters.
A target that is left out is a sample that comes with kcensus.

With -o, the notebook runs, and its results are written: as one HTML page that loads nothing else,
or as an .ipynb file for Jupyter. Without -o, it is written to the current directory as an .ipynb
file and opened in JupyterLab, where you run and change it.

Notebooks run in a process of their own, in the Python environment of kcensus. They need the
packages of `pip install 'kcensus[notebook]'`."""

COMMAND = command(
    "notebook",
    action("kcensus.actions.notebooks:run"),
    [
        click.Argument(["name"], required=False),
        click.Argument(["targets"], nargs=-1, metavar="[TARGET]..."),
        click.Option(
            ["-o", "--output"],
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Run the notebook and write FILE, a name that ends with .html or .ipynb.",
        ),
        click.Option(
            ["parameters", "-p"],
            multiple=True,
            metavar="NAME=VALUE",
            help="Set a parameter of the notebook. May be repeated.",
        ),
        click.Option(["--code"], is_flag=True, help="Show the code of the notebook in the page."),
    ],
    "where the memory of a machine is, what a patch changed, what grows: with charts",
    _HELP,
    (
        ("kcensus notebook", "list the notebooks"),
        ("kcensus notebook capacity_report -o report.html", "on the sample"),
        ("kcensus notebook capacity_report vmcore -s vmlinux -o report.html", "on a vmcore"),
        ("kcensus notebook patch_validation before.vmcore after.vmcore -o effect.html", "on two"),
        ("kcensus notebook capacity_report vmcore -p top=20 -o report.ipynb", "for Jupyter"),
    ),
)
