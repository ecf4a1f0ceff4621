"""On whose behalf this process makes Flower's messages."""

from flwr.supercore.task_identity import TaskIdentity


def act_for(task: int, run: int, node: int) -> None:
    """Messages look it up when they are made."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task, run, node
