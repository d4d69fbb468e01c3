"""Why did it do that? Decision records as a timeline, and what turns in observe mode would do."""
