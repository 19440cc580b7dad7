"""What a job leaves behind for its next coordinator, whoever starts that."""
