"""How fast is it: the clock, the schedule, the summary, the doubts."""
