// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tasks that wait for each other, in cycles and in a queue. The parameter says which:
 *
 * abba        two mutexes taken in both orders, and tasks that wait behind the two
 * four        memory that goes offline, a work item that kills a cgroup, a program that dumps
 *             core and the reader of its pipe; see below
 * rwsem       two rwsems read by one task each and wanted by the other for writing; and a reader
 *             that reads again behind a writer
 * self        tasks that wait for what they hold themselves
 * completion  tasks that wait for an event, or a work item, behind a mutex that they hold
 * kinds       a mutex and one more kind of lock, in both orders
 * convoy      200 tasks behind a mutex whose owner waits for the disk
 *
 * Before a task blocks, the kernel log has a line for all it holds, and one for what it waits for:
 *
 *   kcensus_waits: task PID COMM holds KIND ADDRESS MODE
 *   kcensus_waits: task PID COMM waits KIND ADDRESS MODE
 *
 * Written for the tests of this project; it is loaded in guests only.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/completion.h>
#include <linux/delay.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/percpu-rwsem.h>
#include <linux/pipe_fs_i.h>
#include <linux/proc_fs.h>
#include <linux/rtmutex.h>
#include <linux/rwsem.h>
#include <linux/sched.h>
#include <linux/sched/task.h>
#include <linux/semaphore.h>
#include <linux/slab.h>
#include <linux/version.h>
#include <linux/wait_bit.h>
#include <linux/workqueue.h>

static char *scenario = "abba";
module_param(scenario, charp, 0444);
MODULE_PARM_DESC(scenario, "What to make");

static char *disk;
module_param(disk, charp, 0444);
MODULE_PARM_DESC(disk, "What the owner of the convoy's mutex reads");

enum kind {
	MUTEX = 1,
	RWSEM,
	PERCPU_RWSEM,
	RT_MUTEX,
	SEMAPHORE,
	COMPLETION,
	PAGE,
	WORK,
	BIT,
	DISK,
};

enum verb { END, HOLD, WAIT, AWAIT };

/* READ and WRITE are the modes of rwsems; the others have one mode. */
enum mode { READ_MODE, WRITE_MODE };

struct step {
	enum verb verb;
	enum kind kind;
	int number; /* of the lock; for AWAIT, of the tasks that must sleep */
	enum mode mode;
};

struct actor {
	const char *scenario;
	const char *name; /* NULL: a work item */
	struct step steps[5];
	int count;
};

static const struct actor actors[] = {
	{"abba", "abba-1", {{HOLD, MUTEX, 0}, {WAIT, MUTEX, 1}}},
	{"abba", "abba-2", {{HOLD, MUTEX, 1}, {WAIT, MUTEX, 0}}},
	/* Behind them: one task that two more wait for, and one that waits alone. */
	{"abba", "behind-1", {{HOLD, MUTEX, 2}, {AWAIT, 0, 2}, {WAIT, MUTEX, 0}}},
	{"abba", "behind-2", {{AWAIT, 0, 3}, {WAIT, MUTEX, 2}}},
	{"abba", "behind-3", {{AWAIT, 0, 3}, {WAIT, MUTEX, 2}}},
	{"abba", "behind-4", {{AWAIT, 0, 3}, {WAIT, MUTEX, 1}}},

	{"four", "offline-memory", {{HOLD, PERCPU_RWSEM, 0, WRITE_MODE}, {WAIT, PAGE, 0}}},
	{"four", NULL, {{HOLD, MUTEX, 0}, {WAIT, PERCPU_RWSEM, 0, READ_MODE}}},

	{"rwsem", "inverse-1", {{HOLD, RWSEM, 0, READ_MODE}, {WAIT, RWSEM, 1, WRITE_MODE}}},
	{"rwsem", "inverse-2", {{HOLD, RWSEM, 1, READ_MODE}, {WAIT, RWSEM, 0, WRITE_MODE}}},
	/* Once all the others of this scenario sleep, the writer among them. */
	{"rwsem", "again-read",
	 {{HOLD, RWSEM, 2, READ_MODE}, {AWAIT, 0, 5}, {WAIT, RWSEM, 2, READ_MODE}}},
	{"rwsem", "again-write", {{WAIT, RWSEM, 2, WRITE_MODE}}},
	{"rwsem", "owner-write", {{HOLD, RWSEM, 3, WRITE_MODE}, {WAIT, RWSEM, 4, READ_MODE}}},
	{"rwsem", "owner-read", {{HOLD, RWSEM, 4, WRITE_MODE}, {WAIT, RWSEM, 3, READ_MODE}}},

	{"self", "self-mutex", {{HOLD, MUTEX, 0}, {WAIT, MUTEX, 0}}},
	{"self", "self-behind", {{AWAIT, 0, 1}, {WAIT, MUTEX, 0}}},
	{"self", "self-rwsem", {{HOLD, RWSEM, 0, WRITE_MODE}, {WAIT, RWSEM, 0, READ_MODE}}},
	{"self", "self-semaphore", {{HOLD, SEMAPHORE, 0}, {WAIT, SEMAPHORE, 0}}},
	{"self", NULL, {{WAIT, WORK, 0}}},

	{"completion", "event-wait", {{HOLD, MUTEX, 0}, {WAIT, COMPLETION, 0}}},
	{"completion", "event-complete", {{HOLD, COMPLETION, 0}, {WAIT, MUTEX, 0}}},
	{"completion", "work-flush", {{HOLD, MUTEX, 1}, {WAIT, WORK, 0}}},
	{"completion", NULL, {{WAIT, MUTEX, 1}}},

	{"kinds", "semaphore-1", {{HOLD, SEMAPHORE, 0}, {WAIT, MUTEX, 0}}},
	{"kinds", "semaphore-2", {{HOLD, MUTEX, 0}, {WAIT, SEMAPHORE, 0}}},
	{"kinds", "rt-mutex-1", {{HOLD, RT_MUTEX, 0}, {WAIT, MUTEX, 1}}},
	{"kinds", "rt-mutex-2", {{HOLD, MUTEX, 1}, {WAIT, RT_MUTEX, 0}}},
	{"kinds", "bit-1", {{HOLD, BIT, 0}, {WAIT, MUTEX, 2}}},
	{"kinds", "bit-2", {{HOLD, MUTEX, 2}, {WAIT, BIT, 0}}},
	{"kinds", "percpu-1", {{HOLD, PERCPU_RWSEM, 0, READ_MODE}, {WAIT, MUTEX, 3}}},
	{"kinds", "percpu-2", {{HOLD, MUTEX, 3}, {WAIT, PERCPU_RWSEM, 0, WRITE_MODE}}},

	{"convoy", "convoy-owner", {{HOLD, MUTEX, 0}, {WAIT, DISK, 0}}},
	{"convoy", "convoy", {{AWAIT, 0, 1}, {WAIT, MUTEX, 0}}, 200},
};

#define LOCKS 5

static struct mutex mutexes[LOCKS];
static struct rw_semaphore rwsems[LOCKS];
static struct percpu_rw_semaphore percpu_rwsem;
static struct rt_mutex rt_mutex;
static struct semaphore semaphore;
static struct completion completion;
static unsigned long bits;

/* A work item is an actor, too. */
static const struct actor *work_actor;
static void kcensus_work(struct work_struct *work);
static DECLARE_WORK(work_item, kcensus_work);

static int holds_to_come;
static atomic_t holds = ATOMIC_INIT(0);

/* Who waits, in the order in which they began to. */
static struct task_struct *waiting[256];
static atomic_t waits = ATOMIC_INIT(0);

static void account(struct task_struct *task, const char *verb, const char *kind,
		    const void *address, const char *mode)
{
	pr_info("task %d %s %s %s %px %s\n", task->pid, task->comm, verb, kind, address, mode);
}

static void account_step(const struct step *step, const char *verb)
{
	const char *mode = step->mode == WRITE_MODE ? "write" : "read";
	bool is_holder = step->verb == HOLD;
	int i = step->number;

	switch (step->kind) {
	case MUTEX:
		return account(current, verb, "mutex", &mutexes[i], "exclusive");
	case RWSEM:
		return account(current, verb, "rwsem", &rwsems[i], mode);
	case PERCPU_RWSEM:
		return account(current, verb, "percpu_rwsem", &percpu_rwsem, mode);
	case RT_MUTEX:
		return account(current, verb, "rt_mutex", &rt_mutex, "exclusive");
	case SEMAPHORE:
		return account(current, verb, "semaphore", &semaphore, "exclusive");
	case COMPLETION:
		return account(current, verb, "completion", &completion,
			       is_holder ? "complete" : "wait");
	case WORK:
		return account(current, verb, "work", &work_item, is_holder ? "run" : "flush");
	case BIT:
		return account(current, verb, "bit", &bits, "exclusive");
	case DISK: /* which page is the page cache's choice */
		return account(current, verb, "page", NULL, "read");
	case PAGE: /* accounts for itself */
		return;
	}
}

/*
 * The four threads. Memory goes offline: the task has the lock for that, for writing, and waits
 * until the page has no more references than the ones that it expects. A work item that kills a
 * cgroup has the mutex of cgroups, and wants to read the lock. A program that dumps core has taken
 * a reference of the page, and writes to its pipe. The pipe's reader first wants the mutex.
 *
 * The page is mapped by the program, over and over, so that its dump consists of it. Both lines of
 * that program are written for it, because the kernel's own functions are what blocks it.
 */
static struct page *page;
static int mappings;
static struct task_struct *dumper;
static struct pipe_inode_info *pipe;

static noinline void kcensus_isolate_page(void)
{
	int expected, still = 0;

	/* Until the program dumps the page, and has filled the pipe. */
	while (still < 10) {
		expected = 1 + READ_ONCE(mappings);
		still = expected > 1 && page_count(page) > expected && READ_ONCE(pipe) ?
				still + 1 : 0;
		schedule_timeout_interruptible(HZ / 10);
	}
	account(dumper, "holds", "page", page, "reference");
	account(dumper, "waits", "pipe", pipe, "write");
	account(current, "waits", "page", page, "reference");
	wait_var_event(&page->_refcount, page_count(page) <= expected);
}

static int kcensus_mmap(struct file *file, struct vm_area_struct *vma)
{
	unsigned long address;
	int error = 0;

	for (address = vma->vm_start; address < vma->vm_end && !error; address += PAGE_SIZE)
		error = vm_insert_page(vma, address, page);
	if (!error) {
		dumper = get_task_struct(current);
		WRITE_ONCE(mappings, (vma->vm_end - vma->vm_start) / PAGE_SIZE);
	}
	return error;
}

/* The reader has the pipe as its standard input. */
static ssize_t kcensus_read(struct file *file, char __user *buffer, size_t size, loff_t *at)
{
	const struct step step = {WAIT, MUTEX, 0};
	struct file *input = fget(0);

	if (!input || !S_ISFIFO(file_inode(input)->i_mode))
		return -EINVAL;
	WRITE_ONCE(pipe, input->private_data);
	account(current, "holds", "pipe", pipe, "read");
	account_step(&step, "waits");
	fput(input);
	mutex_lock(&mutexes[0]);
	mutex_unlock(&mutexes[0]);
	return 0;
}

static const struct proc_ops kcensus_proc = {
	.proc_read = kcensus_read,
	.proc_mmap = kcensus_mmap,
};

/* Opened by who loads the module: a kernel thread may see no files (7.x). */
static struct file *disk_file;

static noinline void kcensus_read_disk(void)
{
	char *buffer = kmalloc(PAGE_SIZE, GFP_KERNEL);
	loff_t at = 1 << 20;

	if (buffer)
		kernel_read(disk_file, buffer, PAGE_SIZE, &at);
}

static noinline void kcensus_take(const struct step *step)
{
	int i = step->number;

	switch (step->kind) {
	case MUTEX:
		mutex_lock(&mutexes[i]);
		break;
	case RWSEM:
		if (step->mode == READ_MODE)
			down_read(&rwsems[i]);
		else
			down_write(&rwsems[i]);
		break;
	case PERCPU_RWSEM:
		if (step->mode == READ_MODE)
			percpu_down_read(&percpu_rwsem);
		else
			percpu_down_write(&percpu_rwsem);
		break;
	case RT_MUTEX:
		rt_mutex_lock(&rt_mutex);
		break;
	case SEMAPHORE:
		down(&semaphore);
		break;
	case COMPLETION:
		if (step->verb == WAIT)
			wait_for_completion(&completion);
		break;
	case WORK:
		if (step->verb == WAIT)
			flush_work(&work_item);
		break;
	case BIT:
		if (step->verb == WAIT)
			wait_on_bit(&bits, 0, TASK_UNINTERRUPTIBLE);
		else
			set_bit(0, &bits);
		break;
	case DISK:
		kcensus_read_disk();
		break;
	case PAGE:
		kcensus_isolate_page();
		break;
	}
}

static bool is_asleep(struct task_struct *task)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 14, 0)
	return task && READ_ONCE(task->__state) & TASK_UNINTERRUPTIBLE;
#else
	return task && READ_ONCE(task->state) & TASK_UNINTERRUPTIBLE;
#endif
}

static void pause_briefly(void)
{
	schedule_timeout_interruptible(HZ / 50);
}

static void await_sleepers(int count)
{
	int i;

	for (i = 0; i < count; i++)
		while (!is_asleep(READ_ONCE(waiting[i])))
			pause_briefly();
}

static void act(const struct actor *actor)
{
	const struct step *step;

	for (step = actor->steps; step->verb != END; step++) {
		switch (step->verb) {
		case HOLD:
			kcensus_take(step);
			account_step(step, "holds");
			atomic_inc(&holds);
			break;
		case WAIT:
			while (atomic_read(&holds) < holds_to_come)
				pause_briefly();
			account_step(step, "waits");
			WRITE_ONCE(waiting[atomic_fetch_inc(&waits)], current);
			kcensus_take(step);
			pr_err("task %d %s does not wait\n", current->pid, current->comm);
			break;
		default:
			await_sleepers(step->number);
		}
	}
}

static int kcensus_actor(void *actor)
{
	act(actor);
	while (!kthread_should_stop())
		schedule_timeout_interruptible(HZ);
	return 0;
}

static void kcensus_work(struct work_struct *work)
{
	const struct step step = {HOLD, WORK, 0};

	account_step(&step, "holds");
	act(work_actor);
}

static int make_locks(void)
{
	int i;

	for (i = 0; i < LOCKS; i++) {
		mutex_init(&mutexes[i]);
		init_rwsem(&rwsems[i]);
	}
	rt_mutex_init(&rt_mutex);
	sema_init(&semaphore, 1);
	init_completion(&completion);
	page = alloc_page(GFP_KERNEL | __GFP_ZERO);
	if (!page || percpu_init_rwsem(&percpu_rwsem))
		return -ENOMEM;
	return 0;
}

static int start(const struct actor *actor, int number)
{
	struct task_struct *task;

	if (!actor->name) {
		work_actor = actor;
		schedule_work(&work_item);
		return 0;
	}
	if (actor->count)
		task = kthread_run(kcensus_actor, (void *)actor, "%s-%d", actor->name, number);
	else
		task = kthread_run(kcensus_actor, (void *)actor, "%s", actor->name);
	return PTR_ERR_OR_ZERO(task);
}

static int __init kcensus_waits_init(void)
{
	const struct actor *actor;
	const struct step *step;
	int i, error = make_locks();

	if (!error && disk) {
		disk_file = filp_open(disk, O_RDONLY, 0);
		error = PTR_ERR_OR_ZERO(disk_file);
	}
	if (!error && !proc_create("kcensus_waits", 0600, NULL, &kcensus_proc))
		error = -ENOMEM;
	for (actor = actors; actor < actors + ARRAY_SIZE(actors); actor++)
		if (!strcmp(actor->scenario, scenario))
			for (step = actor->steps; step->verb != END; step++)
				holds_to_come += step->verb == HOLD;
	for (actor = actors; actor < actors + ARRAY_SIZE(actors); actor++)
		for (i = 0; !strcmp(actor->scenario, scenario) && i < max(actor->count, 1); i++)
			error = error ?: start(actor, i);
	return error;
}

/* It is never unloaded: there is no exit. */
module_init(kcensus_waits_init);
MODULE_LICENSE("GPL v2");
MODULE_DESCRIPTION("Deadlocks and a convoy for tests");
