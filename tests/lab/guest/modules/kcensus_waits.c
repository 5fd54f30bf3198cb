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
 * rcu         a task that waits for RCU's readers, and others behind its mutex; see below
 *
 * Each task has a function of its own, written as the kernel's code is: it takes what it holds,
 * waits for the rest, and would then release it all. What no field of the kernel says, this code
 * does: who completes an event, for one.
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
#include <linux/cpumask.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/percpu-rwsem.h>
#include <linux/pipe_fs_i.h>
#include <linux/proc_fs.h>
#include <linux/rcupdate.h>
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

/* Scenarios share them: a guest makes one of these. */
#define LOCKS 5

static struct mutex mutexes[LOCKS];
static struct rw_semaphore rwsems[LOCKS];
static struct percpu_rw_semaphore percpu_rwsem;
static struct rt_mutex rt_mutex;
static struct semaphore semaphore;
static struct completion completion;
static unsigned long bits;

static void kcensus_work(struct work_struct *work);
static DECLARE_WORK(work_item, kcensus_work);

static int holds_to_come;
static atomic_t holds = ATOMIC_INIT(0);

/* Who waits, in the order in which they began to. */
static struct task_struct *waiting[256];
static atomic_t waits = ATOMIC_INIT(0);

static noinline void account(struct task_struct *task, const char *verb, const char *kind,
			     const void *address, const char *mode)
{
	pr_info("task %d %s %s %s %px %s\n", task->pid, task->comm, verb, kind, address, mode);
}

static void pause_briefly(void)
{
	schedule_timeout_interruptible(HZ / 50);
}

static noinline void account_hold(const char *kind, const void *address, const char *mode)
{
	account(current, "holds", kind, address, mode);
	atomic_inc(&holds);
}

/* Returns once all tasks hold what they are to hold. */
static noinline void account_wait(const char *kind, const void *address, const char *mode)
{
	while (atomic_read(&holds) < holds_to_come)
		pause_briefly();
	account(current, "waits", kind, address, mode);
	WRITE_ONCE(waiting[atomic_fetch_inc(&waits)], current);
}

static noinline void account_end(void)
{
	pr_err("task %d %s does not wait\n", current->pid, current->comm);
}

#define HOLD(kind, lock, mode, take)                                                               \
	do {                                                                                       \
		take(lock);                                                                        \
		account_hold(kind, lock, mode);                                                    \
	} while (0)

#define WAIT(kind, lock, mode, take)                                                               \
	do {                                                                                       \
		account_wait(kind, lock, mode);                                                    \
		take(lock);                                                                        \
		account_end();                                                                     \
	} while (0)

static bool is_asleep(struct task_struct *task)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 14, 0)
	return task && READ_ONCE(task->__state) & TASK_UNINTERRUPTIBLE;
#else
	return task && READ_ONCE(task->state) & TASK_UNINTERRUPTIBLE;
#endif
}

/* Waits until so many tasks sleep. */
static noinline void await_sleepers(int count)
{
	int i;

	for (i = 0; i < count; i++)
		while (!is_asleep(READ_ONCE(waiting[i])))
			pause_briefly();
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
	account_wait("page", page, "reference");
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
	struct file *input = fget(0);

	if (!input || !S_ISFIFO(file_inode(input)->i_mode))
		return -EINVAL;
	WRITE_ONCE(pipe, input->private_data);
	account(current, "holds", "pipe", pipe, "read");
	account(current, "waits", "mutex", &mutexes[0], "exclusive");
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

static noinline void abba_1(void)
{
	HOLD("mutex", &mutexes[0], "exclusive", mutex_lock);
	WAIT("mutex", &mutexes[1], "exclusive", mutex_lock);
	mutex_unlock(&mutexes[1]);
	mutex_unlock(&mutexes[0]);
}

static noinline void abba_2(void)
{
	HOLD("mutex", &mutexes[1], "exclusive", mutex_lock);
	WAIT("mutex", &mutexes[0], "exclusive", mutex_lock);
	mutex_unlock(&mutexes[0]);
	mutex_unlock(&mutexes[1]);
}

/* Behind them: one task that two more wait for, and one that waits alone. */
static noinline void behind_1(void)
{
	HOLD("mutex", &mutexes[2], "exclusive", mutex_lock);
	await_sleepers(2);
	WAIT("mutex", &mutexes[0], "exclusive", mutex_lock);
	mutex_unlock(&mutexes[0]);
	mutex_unlock(&mutexes[2]);
}

static noinline void behind_others(void)
{
	await_sleepers(3);
	WAIT("mutex", &mutexes[2], "exclusive", mutex_lock);
	mutex_unlock(&mutexes[2]);
}

static noinline void behind_alone(void)
{
	await_sleepers(3);
	WAIT("mutex", &mutexes[1], "exclusive", mutex_lock);
	mutex_unlock(&mutexes[1]);
}

static noinline void offline_memory(void)
{
	HOLD("percpu_rwsem", &percpu_rwsem, "write", percpu_down_write);
	kcensus_isolate_page();
	percpu_up_write(&percpu_rwsem);
}

static noinline void kill_cgroup(void)
{
	HOLD("mutex", &mutexes[0], "exclusive", mutex_lock);
	WAIT("percpu_rwsem", &percpu_rwsem, "read", percpu_down_read);
	percpu_up_read(&percpu_rwsem);
	mutex_unlock(&mutexes[0]);
}

static noinline void inverse_1(void)
{
	HOLD("rwsem", &rwsems[0], "read", down_read);
	WAIT("rwsem", &rwsems[1], "write", down_write);
	up_write(&rwsems[1]);
	up_read(&rwsems[0]);
}

static noinline void inverse_2(void)
{
	HOLD("rwsem", &rwsems[1], "read", down_read);
	WAIT("rwsem", &rwsems[0], "write", down_write);
	up_write(&rwsems[0]);
	up_read(&rwsems[1]);
}

/* Once all the others of this scenario sleep, the writer among them. */
static noinline void again_read(void)
{
	HOLD("rwsem", &rwsems[2], "read", down_read);
	await_sleepers(5);
	WAIT("rwsem", &rwsems[2], "read", down_read);
	up_read(&rwsems[2]);
	up_read(&rwsems[2]);
}

static noinline void again_write(void)
{
	WAIT("rwsem", &rwsems[2], "write", down_write);
	up_write(&rwsems[2]);
}

static noinline void owner_write(void)
{
	HOLD("rwsem", &rwsems[3], "write", down_write);
	WAIT("rwsem", &rwsems[4], "read", down_read);
	up_read(&rwsems[4]);
	up_write(&rwsems[3]);
}

static noinline void owner_read(void)
{
	HOLD("rwsem", &rwsems[4], "write", down_write);
	WAIT("rwsem", &rwsems[3], "read", down_read);
	up_read(&rwsems[3]);
	up_write(&rwsems[4]);
}

static noinline void self_mutex(void)
{
	HOLD("mutex", &mutexes[0], "exclusive", mutex_lock);
	WAIT("mutex", &mutexes[0], "exclusive", mutex_lock);
	mutex_unlock(&mutexes[0]);
}

static noinline void self_behind(void)
{
	await_sleepers(1);
	WAIT("mutex", &mutexes[0], "exclusive", mutex_lock);
	mutex_unlock(&mutexes[0]);
}

static noinline void self_rwsem(void)
{
	HOLD("rwsem", &rwsems[0], "write", down_write);
	WAIT("rwsem", &rwsems[0], "read", down_read);
	up_read(&rwsems[0]);
	up_write(&rwsems[0]);
}

static noinline void self_semaphore(void)
{
	HOLD("semaphore", &semaphore, "exclusive", down);
	WAIT("semaphore", &semaphore, "exclusive", down);
	up(&semaphore);
	up(&semaphore);
}

static noinline void self_work(void)
{
	WAIT("work", &work_item, "flush", flush_work);
}

static noinline void event_wait(void)
{
	HOLD("mutex", &mutexes[0], "exclusive", mutex_lock);
	WAIT("completion", &completion, "wait", wait_for_completion);
	mutex_unlock(&mutexes[0]);
}

static noinline void event_complete(void)
{
	account_hold("completion", &completion, "complete");
	WAIT("mutex", &mutexes[0], "exclusive", mutex_lock);
	mutex_unlock(&mutexes[0]);
	complete(&completion);
}

static noinline void work_flush(void)
{
	HOLD("mutex", &mutexes[1], "exclusive", mutex_lock);
	WAIT("work", &work_item, "flush", flush_work);
	mutex_unlock(&mutexes[1]);
}

static noinline void work_wait(void)
{
	WAIT("mutex", &mutexes[1], "exclusive", mutex_lock);
	mutex_unlock(&mutexes[1]);
}

static noinline void semaphore_1(void)
{
	HOLD("semaphore", &semaphore, "exclusive", down);
	WAIT("mutex", &mutexes[0], "exclusive", mutex_lock);
	mutex_unlock(&mutexes[0]);
	up(&semaphore);
}

static noinline void semaphore_2(void)
{
	HOLD("mutex", &mutexes[0], "exclusive", mutex_lock);
	WAIT("semaphore", &semaphore, "exclusive", down);
	up(&semaphore);
	mutex_unlock(&mutexes[0]);
}

static noinline void rt_mutex_1(void)
{
	HOLD("rt_mutex", &rt_mutex, "exclusive", rt_mutex_lock);
	WAIT("mutex", &mutexes[1], "exclusive", mutex_lock);
	mutex_unlock(&mutexes[1]);
	rt_mutex_unlock(&rt_mutex);
}

static noinline void rt_mutex_2(void)
{
	HOLD("mutex", &mutexes[1], "exclusive", mutex_lock);
	WAIT("rt_mutex", &rt_mutex, "exclusive", rt_mutex_lock);
	rt_mutex_unlock(&rt_mutex);
	mutex_unlock(&mutexes[1]);
}

#define set_first_bit(word) set_bit(0, word)
#define wait_on_first_bit(word) wait_on_bit(word, 0, TASK_UNINTERRUPTIBLE)

static noinline void bit_1(void)
{
	HOLD("bit", &bits, "exclusive", set_first_bit);
	WAIT("mutex", &mutexes[2], "exclusive", mutex_lock);
	mutex_unlock(&mutexes[2]);
	clear_bit(0, &bits);
	smp_mb__after_atomic();
	wake_up_bit(&bits, 0);
}

static noinline void bit_2(void)
{
	HOLD("mutex", &mutexes[2], "exclusive", mutex_lock);
	WAIT("bit", &bits, "exclusive", wait_on_first_bit);
	mutex_unlock(&mutexes[2]);
}

static noinline void percpu_1(void)
{
	HOLD("percpu_rwsem", &percpu_rwsem, "read", percpu_down_read);
	WAIT("mutex", &mutexes[3], "exclusive", mutex_lock);
	mutex_unlock(&mutexes[3]);
	percpu_up_read(&percpu_rwsem);
}

static noinline void percpu_2(void)
{
	HOLD("mutex", &mutexes[3], "exclusive", mutex_lock);
	WAIT("percpu_rwsem", &percpu_rwsem, "write", percpu_down_write);
	percpu_up_write(&percpu_rwsem);
	mutex_unlock(&mutexes[3]);
}

/* Which page it is, is the choice of the page cache. */
static noinline void convoy_owner(void)
{
	HOLD("mutex", &mutexes[0], "exclusive", mutex_lock);
	account_wait("page", NULL, "read");
	kcensus_read_disk();
	account_end();
	mutex_unlock(&mutexes[0]);
}

static noinline void convoy(void)
{
	await_sleepers(1);
	WAIT("mutex", &mutexes[0], "exclusive", mutex_lock);
	mutex_unlock(&mutexes[0]);
}

/*
 * RCU. A reader stays in its section and keeps a CPU busy; where sections can be preempted, another
 * reader is, by a thread of a higher priority that keeps another CPU busy. Neither ends, so a task
 * that waits for all readers holds its mutex for good. The scenario needs a CPU for each of them,
 * besides the first one.
 */
static bool is_preempted;

/* Not before the kernel has freed the module's code for its start, which waits for RCU, too. */
static void await_end_of_start(void)
{
	schedule_timeout_interruptible(HZ);
}

static bool is_preemptible(void)
{
	return IS_ENABLED(CONFIG_PREEMPT_RCU) && num_online_cpus() > 2;
}

static noinline void rcu_reader(void)
{
	await_end_of_start();
	rcu_read_lock();
	account_hold("rcu", NULL, "read");
	while (!kthread_should_stop())
		cpu_relax();
	rcu_read_unlock();
}

static noinline void rcu_preempted(void)
{
	await_end_of_start();
	rcu_read_lock();
	account_hold("rcu", NULL, "read");
	WRITE_ONCE(is_preempted, true);
	while (!kthread_should_stop())
		cpu_relax();
	rcu_read_unlock();
}

static noinline void rcu_above(void)
{
	while (!READ_ONCE(is_preempted))
		pause_briefly();
	while (!kthread_should_stop())
		cpu_relax();
}

static noinline void rcu_sync(void)
{
	HOLD("mutex", &mutexes[0], "exclusive", mutex_lock);
	account_wait("rcu", NULL, "sync");
	synchronize_rcu();
	account_end();
	mutex_unlock(&mutexes[0]);
}

static noinline void rcu_behind(void)
{
	await_sleepers(1);
	WAIT("mutex", &mutexes[0], "exclusive", mutex_lock);
	mutex_unlock(&mutexes[0]);
}

struct actor {
	const char *scenario;
	const char *name; /* NULL: a work item */
	void (*act)(void);
	int holds; /* for how much it accounts */
	int count; /* of tasks, 0 for a single one without a number */
	int cpu; /* 0 for any */
	void (*prioritize)(struct task_struct *task);
};

static const struct actor actors[] = {
	{"abba", "abba-1", abba_1, 1},
	{"abba", "abba-2", abba_2, 1},
	{"abba", "behind-1", behind_1, 1},
	{"abba", "behind-2", behind_others},
	{"abba", "behind-3", behind_others},
	{"abba", "behind-4", behind_alone},

	{"four", "offline-memory", offline_memory, 1},
	{"four", NULL, kill_cgroup, 1},

	{"rwsem", "inverse-1", inverse_1, 1},
	{"rwsem", "inverse-2", inverse_2, 1},
	{"rwsem", "again-read", again_read, 1},
	{"rwsem", "again-write", again_write},
	{"rwsem", "owner-write", owner_write, 1},
	{"rwsem", "owner-read", owner_read, 1},

	{"self", "self-mutex", self_mutex, 1},
	{"self", "self-behind", self_behind},
	{"self", "self-rwsem", self_rwsem, 1},
	{"self", "self-semaphore", self_semaphore, 1},
	{"self", NULL, self_work},

	{"completion", "event-wait", event_wait, 1},
	{"completion", "event-complete", event_complete, 1},
	{"completion", "work-flush", work_flush, 1},
	{"completion", NULL, work_wait},

	{"kinds", "semaphore-1", semaphore_1, 1},
	{"kinds", "semaphore-2", semaphore_2, 1},
	{"kinds", "rt-mutex-1", rt_mutex_1, 1},
	{"kinds", "rt-mutex-2", rt_mutex_2, 1},
	{"kinds", "bit-1", bit_1, 1},
	{"kinds", "bit-2", bit_2, 1},
	{"kinds", "percpu-1", percpu_1, 1},
	{"kinds", "percpu-2", percpu_2, 1},

	{"convoy", "convoy-owner", convoy_owner, 1},
	{"convoy", "convoy", convoy, .count = 200},

	{"rcu", "rcu-reader", rcu_reader, 1, .cpu = 1},
	/* Both in real time: of each second, the others may get some time in any case. */
	{"rcu", "rcu-preempted", rcu_preempted, 1, .cpu = 2, .prioritize = sched_set_fifo_low},
	{"rcu", "rcu-above", rcu_above, .cpu = 2, .prioritize = sched_set_fifo},
	{"rcu", "rcu-sync", rcu_sync, 1},
	{"rcu", "rcu-behind", rcu_behind, .count = 3},
};

static const struct actor *work_actor;

static bool is_wanted(const struct actor *actor)
{
	return !strcmp(actor->scenario, scenario) && (actor->cpu < 2 || is_preemptible());
}

static int kcensus_actor(void *actor)
{
	((const struct actor *)actor)->act();
	while (!kthread_should_stop())
		schedule_timeout_interruptible(HZ);
	return 0;
}

static void kcensus_work(struct work_struct *work)
{
	account(current, "holds", "work", &work_item, "run");
	work_actor->act();
	pr_err("the work item ends\n");
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
		task = kthread_create(kcensus_actor, (void *)actor, "%s-%d", actor->name, number);
	else
		task = kthread_create(kcensus_actor, (void *)actor, "%s", actor->name);
	if (IS_ERR(task))
		return PTR_ERR(task);
	if (actor->cpu)
		kthread_bind(task, actor->cpu);
	if (actor->prioritize)
		actor->prioritize(task);
	wake_up_process(task);
	return 0;
}

static int __init kcensus_waits_init(void)
{
	const struct actor *actor;
	int i, error = make_locks();

	if (!error && disk) {
		disk_file = filp_open(disk, O_RDONLY, 0);
		error = PTR_ERR_OR_ZERO(disk_file);
	}
	if (!error && !proc_create("kcensus_waits", 0600, NULL, &kcensus_proc))
		error = -ENOMEM;
	for (actor = actors; actor < actors + ARRAY_SIZE(actors); actor++)
		if (is_wanted(actor))
			holds_to_come += actor->holds;
	for (actor = actors; actor < actors + ARRAY_SIZE(actors); actor++)
		for (i = 0; is_wanted(actor) && i < max(actor->count, 1); i++)
			error = error ?: start(actor, i);
	return error;
}

/* It is never unloaded: there is no exit. */
module_init(kcensus_waits_init);
MODULE_LICENSE("GPL v2");
MODULE_DESCRIPTION("Deadlocks and convoys for tests");
