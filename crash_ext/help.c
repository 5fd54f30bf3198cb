/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "help.h"

#include <stddef.h>

char *help_kcensus[] = { "kcensus", "count what kernel memory holds", "[command] [options]",
	"  Run `kcensus --help`.", NULL };
char *help_listlru[] = { "listlru", "kcensus list-lru", "[options]",
	"  Run `listlru --help`.", NULL };
char *help_kcopyd[] = { "kcopyd", "kcensus kcopyd", "[options]",
	"  Run `kcopyd --help`.", NULL };
char *help_memcgs[] = { "memcgs", "kcensus memcgs", "[options]",
	"  Run `memcgs --help`.", NULL };
char *help_negdent[] = { "negdent", "kcensus dentries", "[options]",
	"  Run `negdent --help`.", NULL };
char *help_slabutil[] = { "slabutil", "kcensus slab", "[options]",
	"  Run `slabutil --help`.", NULL };
char *help_kpatches[] = { "kpatches", "kcensus patches", "[options]",
	"  Run `kpatches --help`.", NULL };
