# SPDX-License-Identifier: LGPL-2.1-or-later
"""The functions that tasks go on in, by *made up* stacks."""

from __future__ import annotations

from kcensus.kernel.waiting.frames import interrupted_in


def test_what_a_preempted_task_goes_on_in() -> None:
    by_timer = ["__schedule", "preempt_schedule_irq", "asm_sysvec_apic_timer_interrupt"]
    assert interrupted_in([*by_timer, "rcu_reader", "kthread"]) == "rcu_reader"
    old = ["__schedule", "preempt_schedule_irq", "retint_kernel"]
    assert interrupted_in([*old, "__offline_pages", "kthread"]) == "__offline_pages"
    assert interrupted_in(["__schedule", "__cond_resched", "scan_pages.isra.0"]) == "scan_pages"
    assert interrupted_in([]) == ""
