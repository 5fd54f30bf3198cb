# SPDX-License-Identifier: LGPL-2.1-or-later
"""Make the data of ``tests/unit/inventory``.

``python -m tests.inventory needs [KERNEL/SCENARIO | CORE:DEBUG…]`` records anew what each function
of kcensus needs, by default from all dumps in the lab's cache.
``python -m tests.inventory types NAME FILE`` adds the types of a kernel, from raw BTF (``*.btf``),
debug info, or a table that was made elsewhere (``*.json``); ``sources.json`` has their origins.
``python -m tests.inventory shares`` prints the share of needs that each kernel serves.
"""

from __future__ import annotations

import sys

from tests.inventory import noting

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["needs", *words]:
            noting.install()
            from tests.inventory.record import record

            record(words)
        case ["types", name, path]:
            from tests.inventory.tables import add

            add(name, path)
        case ["shares"]:
            from tests.inventory.vendors import shares

            print(shares())
        case _:
            sys.exit(__doc__)
