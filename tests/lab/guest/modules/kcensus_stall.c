// SPDX-License-Identifier: GPL-2.0-only
/*
 * Stalls the worker pool of a CPU the way kcopyd does: a callback of one kcopyd client never ends,
 * and whatever else is queued on that CPU waits behind it. On CPU 0, meanwhile, two items keep
 * their pool busy, and it makes progress all the time.
 *
 * Written for the tests of this project; it is loaded in guests only.
 */
#include <linux/delay.h>
#include <linux/dm-kcopyd.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/sysrq.h>
#include <linux/workqueue.h>

static int cpu = 1;
module_param(cpu, int, 0444);
MODULE_PARM_DESC(cpu, "The CPU whose pool is to be stalled");

static unsigned int delay_ms = 8000;
module_param(delay_ms, uint, 0444);
MODULE_PARM_DESC(delay_ms, "How long to wait before that");

static unsigned int report_ms = 35000;
module_param(report_ms, uint, 0444);
MODULE_PARM_DESC(report_ms, "How long after that to have the kernel show its workqueues");

enum { CULPRIT, BEHIND, ALSO_BEHIND, IDLE, CLIENTS };

static struct dm_kcopyd_client *clients[CLIENTS];
static struct workqueue_struct *one_at_a_time;
static struct task_struct *director;
static bool stop;

static void kcensus_endless(int read_err, unsigned long write_err, void *context)
{
	/* Other tasks may run, other items of this pool may not. */
	while (!READ_ONCE(stop)) {
		cpu_relax();
		cond_resched();
	}
}

static void kcensus_nothing(int read_err, unsigned long write_err, void *context)
{
}

static void kcensus_victim(struct work_struct *work)
{
}

static void kcensus_hop(struct work_struct *work)
{
	unsigned long end = jiffies + msecs_to_jiffies(20);

	while (time_before(jiffies, end)) {
		cpu_relax();
		cond_resched();
	}
	if (!READ_ONCE(stop))
		queue_work_on(0, system_wq, work);
}

static DECLARE_WORK(hop, kcensus_hop);
static DECLARE_WORK(hop_too, kcensus_hop);
static DECLARE_WORK(victim, kcensus_victim);
static DECLARE_WORK(victim_too, kcensus_victim);
static DECLARE_WORK(first_of_two, kcensus_victim);
static DECLARE_WORK(second_of_two, kcensus_victim);

static void callbacks(int client, int count, dm_kcopyd_notify_fn function)
{
	while (count--)
		dm_kcopyd_do_callback(dm_kcopyd_prepare_callback(clients[client], function, NULL),
				      0, 0);
}

static int direct(void *unused)
{
	msleep(delay_ms);
	queue_work_on(0, system_wq, &hop);
	queue_work_on(0, system_wq, &hop_too);

	/* Together, so that the first run of the culprit finds all three. */
	preempt_disable();
	callbacks(CULPRIT, 3, kcensus_endless);
	preempt_enable();
	msleep(200);

	callbacks(CULPRIT, 2, kcensus_nothing);
	callbacks(BEHIND, 5, kcensus_nothing);
	callbacks(ALSO_BEHIND, 1, kcensus_nothing);
	queue_work_on(cpu, system_wq, &victim);
	queue_work_on(cpu, system_wq, &victim_too);
	queue_work_on(cpu, one_at_a_time, &first_of_two);
	queue_work_on(cpu, one_at_a_time, &second_of_two);

	msleep(report_ms);
	handle_sysrq('t');
	while (!kthread_should_stop())
		schedule_timeout_interruptible(HZ);
	return 0;
}

static int __init kcensus_stall_init(void)
{
	int i;

	for (i = 0; i < CLIENTS; i++) {
		clients[i] = dm_kcopyd_client_create(NULL);
		if (IS_ERR(clients[i]))
			return PTR_ERR(clients[i]);
	}
	one_at_a_time = alloc_workqueue("kcensus_one", 0, 1);
	if (!one_at_a_time)
		return -ENOMEM;
	director = kthread_create(direct, NULL, "kcensus_stall");
	if (IS_ERR(director))
		return PTR_ERR(director);
	kthread_bind(director, cpu);
	wake_up_process(director);
	return 0;
}

/* It is never unloaded: there is no exit. */
module_init(kcensus_stall_init);
MODULE_LICENSE("GPL v2");
MODULE_DESCRIPTION("A stalled worker pool for tests");
