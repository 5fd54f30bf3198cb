/* SPDX-License-Identifier: GPL-3.0-or-later */
/* Commands of crash that run kcensus on the kernel that crash has open. */
#include <crash/defs.h>
#include <sys/ioctl.h>

#include "child.h"
#include "protocol.h"
#include "server.h"

/* Milliseconds for a child to end by itself. */
#define EOF_GRACE 2000
#define INTERRUPT_GRACE 1500

/*
 * Runs kcensus, never from the current directory, or says in one sentence that it cannot be
 * imported. Until main() handles Ctrl-C, the signal ends the process without a stack trace.
 */
static const char program[] =
	"import signal, sys\n"
	"signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
	"signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])\n"
	"if sys.path[:1] == ['']:\n"
	"    del sys.path[0]\n"
	"try:\n"
	"    from kcensus.prompts.crash import main\n"
	"except ImportError as error:\n"
	"    sys.exit(f'kcensus: {sys.executable} cannot import kcensus ({error}): run "
	"`python3 -m venv ~/kcensus && ~/kcensus/bin/pip install {sys.argv[1]}` and start "
	"crash with KCENSUS_PYTHON=~/kcensus/bin/python')\n"
	"sys.exit(main(sys.argv[2:]))\n";

static const char *python(void)
{
	const char *chosen = getenv("KCENSUS_PYTHON");

	return chosen && *chosen ? chosen : KCENSUS_PYTHON;
}

/* Return the width of the terminal behind crash's pager, or a pipe; 0 for a file. */
static int columns(void)
{
	struct winsize size;

	bool is_paged = pc->stdpipe && fp == pc->stdpipe;

	if (!is_paged && !(pc->redirect & REDIRECT_TO_PIPE))
		return 0;
	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size))
		return 0;
	return size.ws_col;
}

static int errors(void)
{
	if (STREQ(pc->error_path, "redirect"))
		return fileno(fp);
	return pc->error_fp ? fileno(pc->error_fp) : STDERR_FILENO;
}

/* Clear a child's line of progress, and show the cursor, which the child may have hidden. */
static void clear_progress(void)
{
	const char *terminal = getenv("TERM");

	if (isatty(errors()) && terminal && !STREQ(terminal, "dumb"))
		dprintf(errors(), "\r\033[K\033[?25h");
}

/* Say why a child ended, unless the child said so itself. */
static void explain(const struct child *child, enum outcome outcome, int last_signal)
{
	bool has_status = !child->is_lost && !last_signal;

	if (last_signal || (has_status && WIFSIGNALED(child->status)))
		clear_progress();
	if (outcome == OUTCOME_BROKEN)
		error(INFO, "ended '%s': it sent what is not in protocol %d; use the kcensus that "
		      "this extension comes with\n", python(), PROTOCOL_VERSION);
	else if (outcome == OUTCOME_INTERRUPTED && child_interrupted() != SIGINT)
		error(INFO, "ended '%s' because of signal %d (%s)\n", python(), child_interrupted(),
		      strsignal(child_interrupted()));
	else if (outcome == OUTCOME_INTERRUPTED && last_signal == SIGKILL)
		error(INFO, "ended '%s', which did not stop on Ctrl-C\n", python());
	else if (last_signal && outcome != OUTCOME_INTERRUPTED)
		error(INFO, "ended '%s', which closed its connection but went on; run the command "
		      "again\n", python());
	else if (outcome == OUTCOME_SILENT && has_status && !child->status)
		error(INFO, "'%s' ended without a request; start crash with KCENSUS_PYTHON=PATH, the "
		      "Python that has kcensus\n", python());
	else if (outcome != OUTCOME_INTERRUPTED && has_status && WIFSIGNALED(child->status))
		error(INFO, "'%s' was killed by signal %d (%s); run the command again\n", python(),
		      WTERMSIG(child->status), strsignal(WTERMSIG(child->status)));
}

/* Return the milliseconds for the child to end by itself. */
static int grace_of(enum outcome outcome)
{
	if (outcome == OUTCOME_CLOSED || outcome == OUTCOME_SILENT)
		return EOF_GRACE;
	/* Ctrl-C reaches the child too, other signals only crash. */
	return child_interrupted() == SIGINT ? INTERRUPT_GRACE : 0;
}

/* Give crash a signal that ended waiting: it ends scripts and waits for its pager. */
static void pass_on(int signal)
{
	/* A terminal that hung up ends crash at its prompt. */
	if (signal != SIGINT)
		raise(signal);
	raise(SIGINT);
}

static void run(char **argv)
{
	struct launch launch = { .argv = argv, .columns = columns() };
	struct child child;
	enum outcome outcome;
	char *buffer;
	int reason, last_signal;

	buffer = malloc(MAX_REPLY);
	if (!buffer) {
		error(INFO, "cannot allocate %u bytes\n", MAX_REPLY);
		return;
	}
	fflush(fp);
	fflush(stdout);
	fflush(stderr);
	launch.output = fileno(fp);
	launch.errors = errors();
	reason = child_start(&child, &launch);
	if (reason)
		free(buffer);
	if (reason == EINTR && child_interrupted()) {
		pass_on(child_interrupted());
		return;
	}
	if (reason) {
		error(INFO, "cannot start '%s': %s; start crash with KCENSUS_PYTHON=PATH, the "
		      "Python that has kcensus\n", python(), strerror(reason));
		return;
	}
	outcome = serve(&child, buffer);
	free(buffer);
	last_signal = child_end(&child, grace_of(outcome));
	if (child_interrupted() && outcome != OUTCOME_BROKEN)
		outcome = OUTCOME_INTERRUPTED;
	explain(&child, outcome, last_signal);
	if (outcome == OUTCOME_INTERRUPTED)
		pass_on(child_interrupted());
}

static void command(const char *analysis)
{
	char descriptor[16], version[16], *argv[MAXARGS + 8];
	int count = 0, i;

	snprintf(descriptor, sizeof descriptor, "%d", CHILD_SOCKET);
	snprintf(version, sizeof version, "%d", PROTOCOL_VERSION);
	argv[count++] = (char *)python();
	argv[count++] = "-c";
	argv[count++] = (char *)program;
	argv[count++] = KCENSUS_SOURCE;
	argv[count++] = descriptor;
	argv[count++] = version;
	argv[count++] = "--";
	if (analysis)
		argv[count++] = (char *)analysis;
	for (i = 1; i < MAXARGS && args[i]; i++)
		argv[count++] = args[i];
	argv[count] = NULL;
	run(argv);
}

static void cmd_kcensus(void)
{
	command(NULL);
}

/* One line for each short command: its function, its name, and the command of kcensus. */
#define SHORT_COMMANDS(EACH)                         \
	EACH(dentries, "dentries", "dentries")       \
	EACH(negdent, "negdent", "dentries")         \
	EACH(iosched, "iosched", "iosched")          \
	EACH(iostall, "iostall", "iosched")          \
	EACH(kcopyd, "kcopyd", "kcopyd")             \
	EACH(list_lru, "list-lru", "list-lru")       \
	EACH(listlru, "listlru", "list-lru")         \
	EACH(memcgs, "memcgs", "memcgs")             \
	EACH(patches, "patches", "patches")          \
	EACH(kpatches, "kpatches", "patches")        \
	EACH(slab, "slab", "slab")                   \
	EACH(slabutil, "slabutil", "slab")           \
	EACH(waits, "waits", "waits")                \
	EACH(whowaits, "whowaits", "waits")

/* Help pages, as crash shows them: name, purpose, arguments, then lines. */
#define LINE(id, name, analysis) "    " name " is \"kcensus " analysis "\"",
static char *help_kcensus[] = {
	"kcensus",
	"a census of kernel memory and I/O",
	"[command] [options]",
	"  This command runs kcensus on the kernel that is open here.  \"kcensus --help\"",
	"  lists its commands, and \"kcensus COMMAND --help\" describes one, with examples.",
	"  A command without a target is about the kernel that is open here, which is",
	"  called \"session\" where a command needs a name.  Short commands:",
	"",
	SHORT_COMMANDS(LINE)
	"",
	"  An argument with spaces needs double quotes; crash does not know single ones.",
	"  crash's pager gets no colours; \"set scroll off\" shows them.",
	"",
	"  kcensus reads through crash, so it works on each format that crash opens,",
	"  and never writes to the target.  It runs as a child of crash, with the Python",
	"  that the environment variable KCENSUS_PYTHON names.",
	"",
	"EXAMPLES",
	"  What is wrong with this kernel?",
	"",
	"    crash> kcensus report",
	"",
	"  What does a finding mean?",
	"",
	"    crash> kcensus explain slab-waste",
	"",
	"  What grew since Monday, of which there is a JSON document?",
	"",
	"    crash> kcensus diff monday.json",
	"",
	"  Keep what the analyses need of this dump, for a ticket:",
	"",
	"    crash> kcensus capsule create case.capsule",
	"",
	"  Count the caches of kmalloc():",
	"",
	"    crash> slab --table caches --top 0 | grep -c kmalloc",
	NULL,
};

#define PAGE(id, name, analysis)                                                       \
	static char *help_##id[] = {                                                   \
		name,                                                                  \
		"\"kcensus " analysis "\" on the kernel that is open here",            \
		"[options]",                                                           \
		"  \"" name " --help\" shows what it answers, its options and examples.", \
		NULL,                                                                  \
	};
SHORT_COMMANDS(PAGE)

#define FUNCTION(id, name, analysis)     \
	static void cmd_##id(void)       \
	{                                \
		command(analysis);       \
	}
SHORT_COMMANDS(FUNCTION)

#define ENTRY(id, name, analysis) { name, cmd_##id, help_##id, 0 },
static struct command_table_entry commands[] = {
	{ "kcensus", cmd_kcensus, help_kcensus, 0 },
	SHORT_COMMANDS(ENTRY)
	{ NULL, NULL, NULL, 0 },
};

static void __attribute__((constructor)) kcensus_init(void)
{
	register_extension(commands);
}
