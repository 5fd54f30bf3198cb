# SPDX-License-Identifier: LGPL-2.1-or-later
"""Redact capsules: replace names chosen by users with pseudonyms, and zero freed memory."""

from kcensus.redaction.pseudonyms import new_key
from kcensus.redaction.redaction import Redaction

__all__ = ["Redaction", "new_key"]
