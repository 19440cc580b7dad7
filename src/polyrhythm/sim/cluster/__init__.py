"""What is simulated: devices, their compute times, links, stragglers and faults, read from a scenario or a trace."""
