"""Where parameters change: the only arithmetic that both shells use. `config` imports no torch, the rest does."""
