"""What the doctor knows (facts), what it checks (checks), and what it reports (finding)."""
