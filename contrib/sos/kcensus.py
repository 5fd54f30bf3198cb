# SPDX-License-Identifier: GPL-2.0-only
#
# A plugin for sos: README.md says where it belongs. sos is under version 2 of the GNU General
# Public License, and so is this file, which imports parts of it. It starts kcensus as a command.

import os

from sos.report.plugins import DebianPlugin, Plugin, RedHatPlugin, SuSEPlugin, UbuntuPlugin


class Kcensus(Plugin, RedHatPlugin, SuSEPlugin, DebianPlugin, UbuntuPlugin):
    short_desc = "Kernel memory, I/O and waiting tasks, of this kernel and the newest vmcores"

    plugin_name = "kcensus"
    profiles = ("system", "kernel", "debug", "memory", "storage")
    plugin_timeout = 300

    # sos sets a PATH of its own.
    programs = (
        "/usr/bin/kcensus",
        "/usr/local/bin/kcensus",
        "/opt/kcensus/bin/kcensus",
        "~/kcensus/bin/kcensus",
        "~/.local/bin/kcensus",
    )
    dumps = ("/var/crash", "/var/spool/abrt")
    seconds = 60
    grace = 30

    def check_enabled(self):
        return bool(self._program())

    def setup(self):
        program = self._program()
        self.directory = self.get_cmd_output_path()  # sos makes it, once
        self.add_cmd_output(program + " --version", suggest_filename="version")
        self._collect(program, "kernel")
        for place in self.dumps:
            if os.path.isdir(place) and os.listdir(place):
                self._collect(program, os.path.basename(place), place)

    def _program(self):
        """Return the path of kcensus; empty if it is not installed."""
        found = [
            path for path in map(os.path.expanduser, self.programs) if os.access(path, os.X_OK)
        ]
        return found[0] if found else ""

    def _collect(self, program, name, target=""):
        """Collect into the archive of sos; the output says what was left out, and why."""
        out = os.path.join(self.directory, name + ".tar.zst")
        words = [program, "collect", target, "--no-progress", "--force"]
        words += ["--max-time", f"{self.seconds}s", "-o", out]
        self.add_cmd_output(
            " ".join(filter(None, words)),
            suggest_filename="collect_" + name,
            timeout=self.seconds + self.grace,
        )
