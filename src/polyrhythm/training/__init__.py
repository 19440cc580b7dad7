"""Where parameters change: the only arithmetic that the simulator and the runtime use. `config` imports no torch,
the rest does.
"""
