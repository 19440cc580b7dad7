"""How a rank takes part in a step that its script leaves out: passes of a model, a GradScaler, clipping."""
