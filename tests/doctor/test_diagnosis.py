from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from polyrhythm.cli.doctor.show import policy_heads, policy_rows
from polyrhythm.doctor.diagnosis import LEAST_STEPS, diagnose
from polyrhythm.doctor.evidence import Evidence
from polyrhythm.doctor.outlook import Prospect
from tests.doctor.jobs import EXCHANGE_S, drawn, job, linked


def no_table(evidence: Evidence, policies: Sequence[str]) -> list[Prospect]:
    return []


def test_the_answer_names_rank_host_part_and_cost() -> None:
    own_s = drawn()
    own_s[2] += 0.02
    answer = diagnose(job(own_s), predict=no_table)
    assert answer.verdict.startswith("Rank 2 on host1 is slow in computing, which costs 4")
    assert answer.why[0].startswith("rank 2 on host1: computing, persistent, in all steps; 20.")
    assert answer.next_step.startswith("Look at what else runs on host1")
    assert answer.enough


def test_a_healthy_job_is_told_so() -> None:
    answer = diagnose(job(drawn()), ["bsp", "asp"])
    assert answer.verdict.startswith("No rank is slow")
    assert answer.next_step == "Stay on bsp: no other policy is worth its price here."
    assert [row.policy for row in answer.prospects] == ["bsp", "asp"]


def test_a_rate_that_nobody_has_measured_is_told_as_such() -> None:
    evidence = job(drawn())
    assert "samples/s measured" in diagnose(evidence, predict=no_table).facts["today"]
    said = diagnose(replace(evidence, equalised=True), predict=no_table).facts
    assert said["under bsp"].endswith("samples/s worked out")
    assert "today" not in said


def test_of_a_job_whose_ranks_do_not_meet_it_tells_what_bsp_would_take() -> None:
    """Rank 2 takes twice as long as the others, and nobody waits for it."""
    own_s = np.full((4, 200), 0.02)
    own_s[2] = 0.04
    none = np.zeros_like(own_s)
    alone = replace(job(own_s), waiting_s=none, communication_s=none, synchronous=False)
    answer = diagnose(alone, ["bsp", "balanced"])
    assert answer.verdict == "Rank 2 on host1 is slow in computing, which would cost 50 % of the job under bsp."
    assert answer.why[0].endswith("3.96 s of 7.92 s lost (50 %)")
    assert answer.facts["today"] == "1,400 samples/s measured"
    assert answer.facts["under bsp"].startswith("800 samples/s worked out, ")
    assert "more than bsp, with the gradients of bsp" in answer.next_step
    assert "today" not in [*policy_heads(answer), *(field for row in policy_rows(answer) for field in row)]
    assert diagnose(alone, ["bsp"]).next_step.endswith("Bsp would do: no other policy is worth its price here.")


def test_a_wait_for_steps_before_is_no_exchange_of_this_one() -> None:
    """Every eighth step ends in an average of 2 ms, for which the others have waited since seven steps."""
    own_s = np.full((4, 200), 0.02)
    own_s[2] = 0.04
    stood_s = np.zeros_like(own_s)
    stood_s[:, 7::8] = 8 * 0.02 + 0.002
    stood_s[2, 7::8] = 0.002
    apart = replace(job(own_s), waiting_s=stood_s, communication_s=np.zeros_like(own_s), synchronous=False)
    assert diagnose(apart, predict=no_table).facts["under bsp"].startswith("795 samples/s worked out")


def test_too_few_steps_are_no_evidence() -> None:
    own_s = drawn(steps=LEAST_STEPS - 1)
    own_s[1] *= 5
    answer = diagnose(job(own_s), predict=no_table)
    assert not answer.enough
    assert answer.verdict.startswith(f"Not enough evidence: {LEAST_STEPS - 1} steps of every rank")
    assert answer.culprits == []


def test_a_suspicion_is_no_verdict() -> None:
    own_s = drawn()
    own_s[1, 10::40] += 0.3
    answer = diagnose(job(own_s), predict=no_table)
    assert not answer.enough
    assert "rank 1 on host0 was late 5 times" in answer.verdict
    assert "it takes 10 times to tell that from chance" in answer.verdict


def test_a_suspicion_where_all_are_late_now_and_then_says_so() -> None:
    own_s = drawn()
    for rank, steps in enumerate((range(3, 200, 12), range(7, 200, 17), range(11, 200, 17), range(15, 200, 19))):
        own_s[rank, list(steps)] += 0.1
    answer = diagnose(job(own_s), predict=no_table)
    assert "was late 17 times" in answer.verdict
    assert answer.verdict.endswith("others were late nearly as often.")


def test_two_ranks_in_turns_are_one_sentence() -> None:
    own_s, turn = drawn(), (np.arange(200) // 10) % 2 == 0
    own_s[0, turn] *= 2
    own_s[3, ~turn] *= 2
    answer = diagnose(job(own_s), predict=no_table)
    assert "are slow in turns in computing" in answer.verdict
    assert len(answer.why) == 2


def test_what_ifs_are_worked_out_step_by_step() -> None:
    own_s = np.full((4, 60), 0.02)
    own_s[3] = 0.05
    changes = {one.change: one for one in diagnose(job(own_s), predict=no_table).what_ifs}
    now_s, fixed_s = 0.05 + EXCHANGE_S, 0.02 + EXCHANGE_S
    assert changes["without rank 3"].step_s == pytest.approx(fixed_s)
    assert changes["without rank 3"].gain == pytest.approx(0.75 * now_s / fixed_s - 1)
    assert changes["all ranks at the pace of the middle one"].gain == pytest.approx(now_s / fixed_s - 1)
    assert changes["a link twice as fast, at best"].step_s == pytest.approx(0.05 + EXCHANGE_S / 2)
    assert changes["gradients in bf16, at best"].step_s == pytest.approx(0.05 + EXCHANGE_S / 2)
    # Speeds of 3 * 50 and 20 a second add up to 170: 4 * 50 / 170 of the time of a quick one.
    assert changes["batches in shares by speed"].step_s == pytest.approx(0.02 * 200 / 170 + EXCHANGE_S)


def test_a_slow_link_is_told_from_a_slow_rank() -> None:
    evidence = linked(job(np.full((4, 60), 0.02)), slow=2, times=6.0, exchange_s=0.02)
    answer = diagnose(evidence, predict=no_table)
    assert answer.verdict.startswith("The link from rank 2 on host1 to rank 3 on host1 is slow, which costs ")
    assert answer.next_step.startswith("Look at the link of host1")
    changes = {one.change: one for one in answer.what_ifs}
    lost_s = answer.culprits[0].lost_share * 0.04
    assert changes["the slow link like the others"].step_s == pytest.approx(0.04 - lost_s)
    assert changes["without rank 2"].step_s == pytest.approx(0.04 - lost_s)
    assert "a link twice as fast" in changes


def test_links_that_end_at_one_rank_are_its_link() -> None:
    evidence = linked(job(np.full((4, 60), 0.02)), slow=2, times=6.0, exchange_s=0.02)
    links = tuple(
        replace(link, needed_s=link.needed_s * (6.0 if link.receiver == 2 else 1.0)) for link in evidence.links
    )
    answer = diagnose(replace(evidence, links=links), predict=no_table)
    assert answer.verdict.startswith("The link of rank 2 on host1 is slow, which costs ")


def test_an_exchange_that_takes_long_on_all_links_is_said() -> None:
    evidence = linked(job(np.full((4, 60), 0.02)), slow=2, times=1.0, exchange_s=0.02)
    assert diagnose(evidence, predict=no_table).verdict.endswith("falls on all alike; the exchange itself takes 50 %.")


def test_the_slow_first_steps_of_a_job_do_not_count() -> None:
    own_s = drawn()
    own_s[0, :2] = 10.0
    assert diagnose(job(own_s), predict=no_table).verdict.startswith("No rank is slow")
