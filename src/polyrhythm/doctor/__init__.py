"""Who is slow in a job, why, and what another policy would gain: readers of traces, and what is concluded from them."""
