"""What CloudWatch would show of a demo's day: the stack's own dashboard, drawn from its metrics."""
