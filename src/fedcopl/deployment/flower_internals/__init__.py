"""Every use of Flower's private interfaces; all other modules import from here, or from Flower's public modules.

`tests/deployment/test_flower_internals.py` compares this list with the imports of this folder, and names the use that
broke when a new Flower changes it. Each section: the purpose and the file, why it is needed, what Flower would have to
offer for us to drop it, and the names imported.

Site in one process (site_connection)
    why: a SuperNode is a second Python process, fetches code and polls every 3 s; after a kill, a site rejoins in 20 s
    until: a SuperNode can be part of another process
    flwr.app.message: remove_content_from_message
    flwr.common.serde: message_to_proto
    flwr.proto.fleet_pb2: ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
    flwr.proto.heartbeat_pb2: SendNodeHeartbeatRequest
    flwr.proto.message_pb2: ObjectTree
    flwr.proto.node_pb2: Node
    flwr.supercore.inflatable.inflatable_object: get_all_nested_objects, get_object_tree, iterate_object_tree,
        no_object_id_recompute
    flwr.supercore.inflatable.inflatable_protobuf_utils: make_confirm_message_received_fn_protobuf,
        make_pull_object_fn_protobuf, make_push_object_fn_protobuf
    flwr.supercore.inflatable.inflatable_utils: ObjectPullError, ObjectPushError, ObjectUnavailableError,
        inflate_object_from_contents
    flwr.supercore.interceptors: RuntimeVersionHttpInterceptor
    flwr.supernode.fleet_http_client: FleetHttpClient
    flwr.supernode.node_auth_http_interceptor: NodeAuthHttpInterceptor

Control (connections)
    why: this process registers keys and starts a run, with a bundle without code, not the `flwr` command
    until: Control has a public client, and a run can be started without a bundle
    flwr.cli.build: build_fab_from_files
    flwr.proto.control_pb2: ListNodesRequest, ListRunsRequest, RegisterNodeRequest, StartRunRequest,
        UnregisterNodeRequest
    flwr.proto.node_pb2: NodeInfo
    flwr.supercore.constant: NodeStatus
    flwr.supercore.control: ControlHttpClient
    flwr.supercore.interceptors: RuntimeVersionHttpInterceptor

Tasks (connections)
    why: this process, which has the model, does the task; Flower would start another one with code that it was sent
    until: tasks have a public client, and the exceptions of `Grid` are public
    flwr.common.constant: SubStatus
    flwr.common.serde: run_from_proto
    flwr.proto.runtime_pb2: AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest, SendTaskHeartbeatRequest
    flwr.supercore.constant: TaskType
    flwr.supercore.heartbeat: HeartbeatSender
    flwr.supercore.interceptors: RuntimeTokenHttpInterceptor, SuperExecAuthHttpInterceptor
    flwr.supercore.run: RunNotRunningException
    flwr.supercore.runtime: RuntimeHttpClient
    flwr.superlink.grid: HttpGrid

Messages (__init__)
    why: a `Message` takes its sender from a global; a lost request is sent again, a failed site is not
    until: a grid creates messages for its own run, and the codes of `Error` are public
    flwr.common.constant: ErrorCode
    flwr.supercore.task_identity: TaskIdentity

Local access (superlink)
    why: Control and Runtime do not authenticate; a middleware, patched in, opens them to this machine only
    until: they can listen on a port of their own, or require a secret
    flwr.superlink: extensions
    flwr.superlink.cli: flower_superlink

Upload limit (superlink)
    why: the key and the request from which on the bytes of a reply are counted
    until: a SuperLink limits the size of a reply
    flwr.proto.fleet_pb2: PullMessagesResponse
    flwr.supercore.constant: FLEET_HTTP_PUBLIC_KEY_HEADER
"""

from hashlib import sha256

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.supercore.task_identity import TaskIdentity

CONTROL_HEADER = "x-fedcopl-control"
HEARTBEAT = 10  # seconds, the least that a SuperLink accepts; a site without a heartbeat for twice as long is gone
_LOST = {  # the request or its reply was lost: the server sends again, and gets the same reply
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
    ErrorCode.CLIENT_APP_CRASHED,
}


def control_key(secret: bytes) -> str:
    """Return the key for Control, derived from the secret that a server shares with its SuperLink."""
    return sha256(b"control " + secret).hexdigest()


def act_for(task: int, run: int, node: int) -> None:
    """Set the sender of the messages that this process creates."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task, run, node


def is_lost(message: Message) -> bool:
    """Return whether a message reports a lost request or reply.

    >>> from flwr.app import RecordDict
    >>> act_for(1, 1, 1)
    >>> is_lost(Message(RecordDict(), 7, "query.train"))
    False
    """
    return message.has_error() and message.error.code in _LOST
