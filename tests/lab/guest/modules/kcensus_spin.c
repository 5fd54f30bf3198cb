// SPDX-License-Identifier: GPL-2.0-only
/*
 * A task that spins with a spinlock on CPU 1, one that holds a mutex and spins for that lock on
 * CPU 2, and sleepers behind them: two for the mutex, and one for a work item that is queued on
 * CPU 1, where no worker gets the CPU.
 *
 * The kernel log has lines as those of kcensus_waits.
 *
 * Written for the tests of this project; it is loaded in guests only.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/sched.h>
#include <linux/spinlock.h>
#include <linux/version.h>
#include <linux/workqueue.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 17, 0)
#define WQ_PERCPU 0
#endif

enum { HOLDER_CPU = 1, SPINNER_CPU, WAITERS = 2 };

static DEFINE_SPINLOCK(lock);
static DEFINE_MUTEX(mutex);
static struct workqueue_struct *queue;
static bool stop;

static void kcensus_nothing(struct work_struct *work)
{
}

static DECLARE_WORK(work_item, kcensus_nothing);

static noinline void account(const char *verb, const char *kind, void *object, const char *mode)
{
	pr_info("task %d %s %s %s %px %s\n", current->pid, current->comm, verb, kind, object, mode);
}

static noinline void spin_holder(void)
{
	account("holds", "spinlock", &lock, "exclusive");
	account("holds", "cpu", NULL, "exclusive");
	spin_lock(&lock);
	while (!READ_ONCE(stop))
		cpu_relax();
	spin_unlock(&lock);
}

static noinline void spin_waiter(void)
{
	mutex_lock(&mutex);
	account("holds", "mutex", &mutex, "exclusive");
	msleep(500);
	account("waits", "spinlock", &lock, "exclusive");
	spin_lock(&lock);
	spin_unlock(&lock);
	mutex_unlock(&mutex);
}

static noinline void spin_behind(void)
{
	msleep(1000);
	account("waits", "mutex", &mutex, "exclusive");
	mutex_lock(&mutex);
	mutex_unlock(&mutex);
}

static noinline void spin_flush(void)
{
	msleep(1000);
	account("waits", "work", &work_item, "flush");
	queue_work_on(HOLDER_CPU, queue, &work_item);
	flush_work(&work_item);
}

static int kcensus_spinner(void *act)
{
	((void (*)(void))act)();
	while (!kthread_should_stop())
		schedule_timeout_interruptible(HZ);
	return 0;
}

static int start(const char *name, void (*act)(void), int cpu)
{
	struct task_struct *task = kthread_create(kcensus_spinner, act, "%s", name);

	if (IS_ERR(task))
		return PTR_ERR(task);
	kthread_bind(task, cpu);
	wake_up_process(task);
	return 0;
}

static int __init kcensus_spin_init(void)
{
	int i, error;

	queue = alloc_workqueue("kcensus_spin", WQ_PERCPU, 0);
	if (!queue)
		return -ENOMEM;
	error = start("spin-waiter", spin_waiter, SPINNER_CPU);
	for (i = 0; !error && i < WAITERS; i++)
		error = start("spin-behind", spin_behind, 0);
	error = error ?: start("spin-flush", spin_flush, 0);
	msleep(100);
	return error ?: start("spin-holder", spin_holder, HOLDER_CPU);
}

/* It is never unloaded: there is no exit. */
module_init(kcensus_spin_init);
MODULE_LICENSE("GPL v2");
MODULE_DESCRIPTION("Busy CPUs for tests");
