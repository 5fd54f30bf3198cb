# SPDX-License-Identifier: LGPL-2.1-or-later
"""Redact capsules: zero memory that no analysis uses, and replace its text with pseudonyms."""

from kcensus.redaction.pseudonyms import new_key
from kcensus.redaction.redaction import Redaction

__all__ = ["Redaction", "new_key"]
