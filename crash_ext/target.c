/* SPDX-License-Identifier: GPL-3.0-or-later */
#include "target.h"

#include <crash/defs.h>

/* Most bytes of VMCOREINFO, if the target is damaged. */
#define MAX_VMCOREINFO (64u << 10)
#define NOTE_NAME "VMCOREINFO"

#define ON_ERROR (RETURN_ON_ERROR | QUIET)

/*
 * Call step(). If crash gives up and jumps to its prompt, as for an unreadable page table of the
 * kernel, return FALSE instead, so that the child can be ended. Meanwhile, `--zero_excluded` of
 * crash is off: unreadable memory is not zero.
 */
static int guarded(void (*step)(void *), void *arg)
{
	const ulong zero_excluded = *diskdump_flags & ZERO_EXCLUDED;
	jmp_buf prompt;
	int complete = FALSE;

	*diskdump_flags &= ~ZERO_EXCLUDED;
	memcpy(prompt, pc->main_loop_env, sizeof prompt);
	if (!setjmp(pc->main_loop_env)) {
		step(arg);
		complete = TRUE;
	}
	memcpy(pc->main_loop_env, prompt, sizeof prompt);
	*diskdump_flags |= zero_excluded;
	return complete;
}

/* Facts "key=value", each with a NUL at its end. */
struct facts {
	char *text;
	size_t used, size;
};

static void __attribute__((format(printf, 2, 3))) add(struct facts *facts, const char *format, ...)
{
	size_t room = facts->size - facts->used;
	va_list values;
	int length;

	va_start(values, format);
	length = vsnprintf(facts->text + facts->used, room, format, values);
	va_end(values);
	if (length >= 0 && (size_t)length < room)
		facts->used += length + 1;
}

static void add_text(struct facts *facts, const char *key, const char *text)
{
	if (text && *text)
		add(facts, "%s=%s", key, text);
}

/*
 * Add each file of a dump of several files. crash has no list of them for extensions, but prints
 * one: an indented path on each line, then remarks such as " [PARTIAL DUMP]".
 */
static bool add_files(struct facts *facts, void (*show)(void))
{
	FILE *const output = fp;
	char *text = NULL, *line, *rest, *remark;
	const size_t used = facts->used;
	size_t size;

	fp = open_memstream(&text, &size);
	if (!fp) {
		fp = output;
		return false;
	}
	show();
	fclose(fp);
	fp = output;
	if (!text)
		return false;
	for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		line += strspn(line, " ");
		while (access(line, F_OK) && (remark = strrchr(line, '[')) && remark > line &&
		       remark[-1] == ' ')
			remark[-1] = '\0';
		/* For images of RAM, crash opens an ELF header that it has written itself. */
		if (show != show_ramdump_files || strcmp(line, pc->dumpfile))
			add_text(facts, "dumpfile", line);
	}
	free(text);
	return facts->used > used;
}

static void add_dump(struct facts *facts)
{
	if (dumpfile_is_split() && add_files(facts, show_split_dumpfiles))
		return;
	if (is_ramdump_image() && add_files(facts, show_ramdump_files))
		return;
	add_text(facts, "dumpfile", pc->dumpfile);
}

size_t target_hello(char *buffer, size_t size)
{
	struct facts facts = { .text = buffer, .size = size };
	int i;

	add_text(&facts, "machine", pc->machine_type);
	add(&facts, "live=%d", ACTIVE() ? 1 : 0);
	/* A guest whose memory is a file, and a kernel behind crash's daemon, are live too. */
	add(&facts, "local=%d", LOCAL_ACTIVE() && !REMOTE_ACTIVE() ? 1 : 0);
	/* The dump file of a live kernel is a memory device; its namelist is the target. */
	if (!ACTIVE())
		add_dump(&facts);
	add_text(&facts, "namelist", pc->namelist_debug);
	add_text(&facts, "namelist", pc->debuginfo_file);
	add_text(&facts, "namelist", pc->namelist);
	add_text(&facts, "release", kt->utsname.release);
	/* crash subtracts kt->relocate from the addresses in the namelist. */
	add(&facts, "kaslr_offset=%lx", -kt->relocate);
	for (i = 0; i < st->mods_installed; i++) {
		const struct load_module *module = &st->load_modules[i];

		if (module->mod_flags & MOD_LOAD_SYMS)
			add_text(&facts, "module", module->mod_namelist);
	}
	return facts.used;
}

static enum status why(int result)
{
	/* crash returns READ_ERROR for memory in no segment of an ELF file. */
	if (result == READ_ERROR && (KDUMP_DUMPFILE() || NETDUMP_DUMPFILE()))
		return STATUS_ABSENT;
	switch (result) {
	case PAGE_EXCLUDED:
		return STATUS_FILTERED;
#ifdef PAGE_INCOMPLETE
	case PAGE_INCOMPLETE:
		return STATUS_TRUNCATED;
#endif
	case SEEK_ERROR:
		return STATUS_ABSENT;
	}
	return STATUS_UNREADABLE;
}

struct reading {
	const struct read_request *request;
	char *buffer;
	size_t done;
	enum status status;
};

/* Read a part of one page; readmem() does not say why it fails. */
static enum status read_page(ulonglong address, int type, char *buffer, long size)
{
	physaddr_t physical = address;
	int fd;

	if (readmem(address, type, buffer, size, "kcensus", ON_ERROR))
		return STATUS_COMPLETE;
	if (type == KVADDR &&
	    !(IS_KVADDR(address) && kvtop(CURRENT_CONTEXT(), address, &physical, 0)))
		return STATUS_UNMAPPED;
	fd = REMOTE_MEMSRC() ? pc->sockfd : ACTIVE() ? pc->mfd : pc->dfd;
	return why(READMEM(fd, buffer, size, type == KVADDR ? address : 0, physical));
}

static void read_pages(void *arg)
{
	struct reading *reading = arg;
	const struct read_request *request = reading->request;
	int type = request->space == SPACE_PHYSICAL ? PHYSADDR : KVADDR;

	while (reading->done < request->size) {
		uint64_t address = request->address + reading->done;
		uint64_t size = PAGESIZE() - address % PAGESIZE();

		if (size > request->size - reading->done)
			size = request->size - reading->done;
		/* The status if crash jumps to its prompt while it reads the page. */
		reading->status = STATUS_UNREADABLE;
		reading->status =
			read_page(address, type, reading->buffer + reading->done, size);
		if (reading->status != STATUS_COMPLETE)
			return;
		reading->done += size;
	}
}

size_t target_read(const struct read_request *request, char *buffer, uint32_t *status)
{
	struct reading reading = { .request = request, .buffer = buffer };

	guarded(read_pages, &reading);
	*status = reading.status;
	return reading.done;
}

struct text {
	char *buffer;
	size_t size, length;
};

static int is_vmcoreinfo(const char *text, size_t length)
{
	const char start[] = "OSRELEASE=";

	return length > sizeof start && !memcmp(text, start, sizeof start - 1);
}

/* Return the address of a buffer of the kernel: an array `name`, or the target of a pointer. */
static ulong buffer_of(const char *name, const char *start, size_t length)
{
	ulong address, pointer;
	char found[16];

	if (!symbol_exists((char *)name))
		return 0;
	address = symbol_value((char *)name);
	/*
	 * Since Linux kernel commit 203e9e41219b ("kexec: move vmcoreinfo out of the kernel's .bss
	 * section") (in v4.13), they are pointers, and were arrays before.
	 */
	if (readmem(address, KVADDR, found, length, "kcensus", ON_ERROR) &&
	    !memcmp(found, start, length))
		return address;
	if (readmem(address, KVADDR, &pointer, sizeof pointer, "kcensus", ON_ERROR) &&
	    IS_KVADDR(pointer))
		return pointer;
	return 0;
}

/* Read the ELF note that the kernel keeps for the kernel that dumps it. */
static void read_note(void *arg)
{
	const uint32_t name_size = sizeof NOTE_NAME;
	struct text *text = arg;
	struct {
		uint32_t name_size, size, type;
		char name[12];
	} note;
	ulong address = buffer_of("vmcoreinfo_note", (const char *)&name_size, sizeof name_size);

	if (!address || !readmem(address, KVADDR, &note, sizeof note, "kcensus", ON_ERROR))
		return;
	if (note.name_size != name_size || memcmp(note.name, NOTE_NAME, name_size) ||
	    !note.size || note.size > text->size)
		return;
	if (readmem(address + sizeof note, KVADDR, text->buffer, note.size, "kcensus", ON_ERROR) &&
	    is_vmcoreinfo(text->buffer, note.size))
		text->length = note.size;
}

/* Read the text that the kernel copies into the note. */
static void read_data(void *arg)
{
	const char start[] = "OSRELEASE=";
	struct text *text = arg;
	ulong address = buffer_of("vmcoreinfo_data", start, sizeof start - 1);
	ulong size;

	if (!address || !symbol_exists("vmcoreinfo_size"))
		return;
	if (!readmem(symbol_value("vmcoreinfo_size"), KVADDR, &size, sizeof size, "kcensus",
		     ON_ERROR) ||
	    !size || size > text->size)
		return;
	if (readmem(address, KVADDR, text->buffer, size, "kcensus", ON_ERROR) &&
	    is_vmcoreinfo(text->buffer, size))
		text->length = size;
}

size_t target_vmcoreinfo(char *buffer, size_t size)
{
	struct text text = { .buffer = buffer, .size = MIN(size, MAX_VMCOREINFO) };

	guarded(read_note, &text);
	if (!text.length)
		guarded(read_data, &text);
	return text.length;
}

static void read_active_set(void *arg)
{
	(void)arg;
	get_active_set();
}

/* Find the program counter and stack pointer of a task that ran when the kernel was dumped. */
static void registers(struct bt_info *bt, ulong *counter, ulong *stack)
{
	if (KDUMP_DUMPFILE())
		get_kdump_regs(bt, counter, stack);
	else if (DISKDUMP_DUMPFILE())
		get_diskdump_regs(bt, counter, stack);
	else if (NETDUMP_DUMPFILE())
		get_netdump_regs(bt, counter, stack);
	else if (KVMDUMP_DUMPFILE())
		get_kvmdump_regs(bt, counter, stack);
	else if (SADUMP_DUMPFILE())
		get_sadump_regs(bt, counter, stack);
	else if (VMSS_DUMPFILE())
		get_vmware_vmss_regs(bt, counter, stack);
	else
		machdep->get_stack_frame(bt, counter, stack);
}

struct cpu_reading {
	struct cpu_state state;
	char *stack;
};

/* Fill in the task that a CPU runs, and its registers, which only a dump can hold. */
static void read_cpu(void *arg)
{
	struct cpu_reading *reading = arg;
	struct cpu_state *state = &reading->state;
	struct bt_info bt;

	BZERO(&bt, sizeof bt);
	bt.task = state->task;
	bt.tc = task_to_context(bt.task);
	if (!bt.tc)
		return;
	state->pid = bt.tc->pid;
	if (ACTIVE())
		return;
	bt.stackbase = GET_STACKBASE(bt.task);
	bt.stacktop = GET_STACKTOP(bt.task);
	bt.stackbuf = reading->stack;
	fill_stackbuf(&bt);
	registers(&bt, (ulong *)&state->pc, (ulong *)&state->sp);
}

size_t target_cpus(char *buffer, size_t size)
{
	/* crash explains at length why a stack has no frame; keep that from the user's output. */
	FILE *const output = fp, *const errors = pc->error_fp, *const pager = pc->stdpipe;
	struct cpu_reading reading = { .stack = malloc(STACKSIZE()) };
	size_t used = 0;
	int cpu;

	if (!reading.stack)
		return 0;
	fp = pc->error_fp = pc->nullfp;
	pc->stdpipe = NULL;
	guarded(read_active_set, NULL);
	for (cpu = 0; cpu < kt->cpus && used + sizeof(struct cpu_state) <= size; cpu++) {
		/* There is no active set if crash could not read the run queues. */
		ulong task = tt->active_set ? tt->active_set[cpu] : 0;

		if (!task || check_offline_cpu(cpu))
			continue;
		reading.state = (struct cpu_state){ .cpu = cpu, .task = task };
		guarded(read_cpu, &reading);
		memcpy(buffer + used, &reading.state, sizeof reading.state);
		used += sizeof reading.state;
	}
	free(reading.stack);
	fp = output;
	pc->error_fp = errors;
	pc->stdpipe = pager;
	return used;
}
