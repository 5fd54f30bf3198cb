# SPDX-License-Identifier: LGPL-2.1-or-later
# `make TARGET` is `./run TARGET`.

TARGETS = demo test test-lab wheel packages release lint docs man bench lab samples lock ci

.PHONY: help $(TARGETS)
help:
	@./run help
$(TARGETS):
	@./run $@
