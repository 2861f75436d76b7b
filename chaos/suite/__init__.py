"""Running scenarios: one, several, often; what came of all of them together; and the smallest that still shows it."""
