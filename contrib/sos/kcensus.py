# SPDX-License-Identifier: GPL-2.0-only
#
# A plugin for sos: README.md says where it belongs. sos is under version 2 of the GNU General
# Public License, and so is this file, which imports parts of it. It starts kcensus as a command.

import os
import re
import shlex

from sos.report.plugins import DebianPlugin, Plugin, RedHatPlugin, SuSEPlugin, UbuntuPlugin


class Kcensus(Plugin, RedHatPlugin, SuSEPlugin, DebianPlugin, UbuntuPlugin):
    short_desc = "Kernel memory, I/O and waiting tasks, of this kernel and the newest vmcores"

    plugin_name = "kcensus"
    profiles = ("system", "kernel", "debug", "memory", "storage")
    plugin_timeout = 1000

    # sos sets a PATH of its own.
    programs = (
        "/usr/bin/kcensus",
        "/usr/local/bin/kcensus",
        "/opt/kcensus/bin/kcensus",
        "~/kcensus/bin/kcensus",
        "~/.local/bin/kcensus",
    )
    dumps = ("/var/crash", "/var/spool/abrt")
    # Words that follow those of each command, such as "--redact names": what is collected.
    # Plugin has options and an attribute of that name.
    options_file = "/etc/kcensus/collect.options"
    seconds = 60
    seconds_to_redact = 300
    grace = 30

    def check_enabled(self):
        return bool(self._program())

    def setup(self):
        program = self._program()
        words = self._options()  # or nothing is collected
        self.directory = self.get_cmd_output_path()  # sos makes it, once
        self.add_cmd_output(program + " --version", suggest_filename="version")
        self._collect(program, words, "kernel")
        for place in self.dumps:
            if os.path.isdir(place) and os.listdir(place):
                self._collect(program, words, os.path.basename(place), place)

    def _program(self):
        """Return the path of kcensus; empty if it is not installed."""
        found = [
            path for path in map(os.path.expanduser, self.programs) if os.access(path, os.X_OK)
        ]
        return found[0] if found else ""

    def _options(self):
        """Return the words in the file of options; a file that cannot be read is an error."""
        if not os.path.lexists(self.options_file):
            return []
        with open(self.options_file) as file:
            return re.sub("#.*", "", file.read()).split()

    def _collect(self, program, options, name, target=""):
        """Collect into the archive of sos; the output says what was left out, and why."""
        out = os.path.join(self.directory, name + ".tar.zst")
        seconds = self.seconds_to_redact if "--redact" in " ".join(options) else self.seconds
        words = [program, "collect", target, "--no-progress", "--force"]
        words += ["--max-time", f"{seconds}s", "-o", out, *options]
        self.add_cmd_output(
            " ".join(map(shlex.quote, filter(None, words))),
            suggest_filename="collect_" + name,
            timeout=seconds + self.grace,
        )
