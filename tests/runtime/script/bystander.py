"""Someone at another terminal, who acts when a worker has made so many steps; the script knows nothing of it.

Python itself reads the file when it starts (sitecustomize), so that neither the script nor its command line is touched.
"""

import json
import os
from pathlib import Path

SITE = """
import os

if "RANK" in os.environ:
    import json, signal, subprocess, sys
    from torch.optim.optimizer import register_optimizer_step_post_hook

    plan = json.loads(os.environ["BYSTANDER"]).get(os.environ["RANK"], {})
    made = {}

    def policy():
        import msgspec
        from polyrhythm.runtime.wire import protocol as control
        from polyrhythm.runtime.launch import rendezvous
        from polyrhythm.runtime.launch import control_client as steer

        return steer.status(msgspec.json.decode(os.environ[rendezvous.COORDINATOR], type=control.Address)).policy

    def due():
        waits = [moment for moment in plan if not moment.isdecimal()]
        return plan.pop(str(made[next(iter(made))]), None) or (plan.pop(policy(), None) if waits else None)

    def act(optimizer, *_):
        made[id(optimizer)] = made.get(id(optimizer), 0) + 1  # which may also be one of our own
        what = due() if id(optimizer) == next(iter(made)) else None
        if what == "kill -9":
            os.kill(os.getpid(), signal.SIGKILL)
        elif what:
            outside = {key: value for key, value in os.environ.items() if key not in ("RANK", "POLYRHYTHM_COORDINATOR")}
            subprocess.run([sys.executable, "-m", "polyrhythm", *what.split()], env=outside, check=True)

    register_optimizer_step_post_hook(act)
"""


def bystander(folder: Path, plan: dict[int, dict[str, str]]) -> dict[str, str]:
    """Variables for the launcher.

    Args:
        folder: for a file.
        plan: ``kill -9``, or words for polyrhythm, by rank and moment: the number of a step, or after the first step
            that finds the job under a policy, its name.
    """
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    paths = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": paths, "BYSTANDER": json.dumps(plan), "OMP_NUM_THREADS": "1"}
