# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the memory of a kernel shows: requests, and the queues of their schedulers."""
