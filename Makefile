# SPDX-License-Identifier: LGPL-2.1-or-later
# For fingers that type make; everything is in ./run.

TARGETS = demo test test-lab lint bench lab samples lock ci

.PHONY: help $(TARGETS)
help:
	@./run help
$(TARGETS):
	@./run $@
