"""What is asked and how answers are read: personas, tasks, prompts, instruments as pure functions. Calls no model."""
