"""What a worker hears of its script's losses and figures, and what it does about them."""
