"""Is it whole? What is read of each fleet, what is known of it, and how that is shown."""
