"""Why did it do that? Decision records as a timeline, and what turns that only looked would do."""
