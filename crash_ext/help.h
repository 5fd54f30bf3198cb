/* SPDX-License-Identifier: GPL-3.0-or-later */
/* The help pages, as crash shows them: name, purpose, arguments, then lines. */
#ifndef KCENSUS_HELP_H
#define KCENSUS_HELP_H

extern char *help_kcensus[];
extern char *help_listlru[];
extern char *help_kcopyd[];
extern char *help_memcgs[];
extern char *help_negdent[];
extern char *help_slabutil[];
extern char *help_kpatches[];

#endif
