"""The only room that knows every stage: tasks, bounded queues, supervision, shutdown."""
