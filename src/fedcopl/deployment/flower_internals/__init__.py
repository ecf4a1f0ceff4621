"""Every use of Flower that its authors do not promise to keep. All else imports from here, or what is public.

`tests/deployment/test_flower_internals.py` holds this list against the imports below this folder, and fails with the
use that broke when a new Flower changes it. Each entry: the module, what is taken of it (and by which file), why, and
what Flower would have to offer for us to drop it.

flwr.app.message: remove_content_from_message (site_connection)
    why: a site sends its answers itself; the list of an answer's pieces goes first, without them
    until: a SuperNode can be part of another process
flwr.cli.build: build_fab_from_files (connections)
    why: StartRun takes nothing but an app bundle; ours holds names and no code
    until: a run can be started without a bundle
flwr.common.constant: ErrorCode (messages)
    why: tells a request that was lost, which is sent again, from a site that failed
    until: the codes of `Error` are public
flwr.common.constant: SubStatus (connections)
    why: how a task ended, in the words that a SuperLink takes
    until: tasks have a public client
flwr.common.serde: message_to_proto (site_connection)
    why: the same
    until: a SuperNode can be part of another process
flwr.common.serde: run_from_proto (connections)
    why: the grid wants to be given the run that it is for
    until: tasks have a public client
flwr.proto.control_pb2: ListNodesRequest, ListRunsRequest, RegisterNodeRequest, StartRunRequest,
        UnregisterNodeRequest (connections)
    why: keys are registered and a run is started by this process, not by the `flwr` command and its settings files
    until: Control has a public client
flwr.proto.fleet_pb2: ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest,
        PushMessagesRequest (site_connection)
    why: a site asks for its questions itself: a SuperNode is a second Python, fetches code, and looks every 3 s
    until: a SuperNode can be part of another process
flwr.proto.fleet_pb2: PullMessagesResponse (answer_limit)
    why: whether a site was given a request, from which on the bytes of its reply are counted
    until: a SuperLink has a limit for each reply
flwr.proto.heartbeat_pb2: SendNodeHeartbeatRequest (site_connection)
    why: the same; with an interval of its own, so that a site that was killed is let in again after 20 s, not 60
    until: a SuperNode can be part of another process
flwr.proto.message_pb2: ObjectTree (site_connection)
    why: the pieces of a question
    until: a SuperNode can be part of another process
flwr.proto.node_pb2: Node (site_connection)
    why: who asks
    until: a SuperNode can be part of another process
flwr.proto.runtime_pb2: AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest,
        SendTaskHeartbeatRequest (connections)
    why: tasks are done in this process, which has the model; Flower would start one for each, with code it was sent
    until: tasks have a public client
flwr.supercore.constant: FLEET_HTTP_PUBLIC_KEY_HEADER (answer_limit)
    why: whose bytes are counted
    until: a SuperLink has a limit for each reply
flwr.supercore.constant: NodeStatus, TaskType (connections)
    why: which sites are connected; which tasks to take
    until: Control and tasks have public clients
flwr.supercore.control: ControlHttpClient (connections)
    why: as flwr.proto.control_pb2
    until: Control has a public client
flwr.supercore.heartbeat: HeartbeatSender (connections)
    why: a task that nobody is known to work on is given up; Flower's own function ends the process on a bad answer
    until: tasks have a public client
flwr.supercore.inflatable.inflatable_object: get_all_nested_objects, get_object_tree, iterate_object_tree,
        no_object_id_recompute (site_connection)
    why: the pieces of a question and of an answer
    until: a SuperNode can be part of another process
flwr.supercore.inflatable.inflatable_protobuf_utils: make_confirm_message_received_fn_protobuf,
        make_pull_object_fn_protobuf, make_push_object_fn_protobuf (site_connection)
    why: fetches and sends them
    until: a SuperNode can be part of another process
flwr.supercore.inflatable.inflatable_utils: ObjectPullError, ObjectPushError, ObjectUnavailableError,
        inflate_object_from_contents (site_connection)
    why: tells a piece that has not come from one that never will, and puts the pieces together
    until: a SuperNode can be part of another process
flwr.supercore.interceptors: RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor (connections)
    why: nobody is answered without a version, and nobody is given a task without the secret
    until: Control and tasks have public clients
flwr.supercore.interceptors: RuntimeVersionHttpInterceptor (site_connection)
    why: nobody is answered without a version
    until: a SuperNode can be part of another process
flwr.supercore.run: RunNotRunningException (connections)
    why: a run that the SuperLink gave up ends in one line
    until: the exceptions of `Grid` are public
flwr.supercore.runtime: RuntimeHttpClient (connections)
    why: as flwr.proto.runtime_pb2
    until: tasks have a public client
flwr.supercore.task_identity: TaskIdentity (messages)
    why: a `Message` looks up here on whose behalf it is made
    until: `Message` is made by a grid, for its own run
flwr.superlink.cli: flower_superlink (superlink)
    why: the command, started by us after the patch
    until: nothing is patched
flwr.superlink.grid: HttpGrid (connections)
    why: the grid of a server that does its task in its own process
    until: tasks have a public client
flwr.superlink: extensions (superlink)
    why: patched: Control and Runtime ask nobody who they are; here they are open to this machine only
    until: they can listen on a port of their own, or ask for a secret
flwr.supernode.fleet_http_client: FleetHttpClient (site_connection)
    why: as flwr.proto.fleet_pb2
    until: a SuperNode can be part of another process
flwr.supernode.node_auth_http_interceptor: NodeAuthHttpInterceptor (site_connection)
    why: shows a site's key
    until: a SuperNode can be part of another process
"""

from hashlib import sha256

CONTROL_HEADER = "x-fedcopl-control"
HEARTBEAT = 10  # seconds, the least that a SuperLink accepts; after twice as many without a sign of life a site is gone


def control_key(secret: bytes) -> str:
    """What a caller of Control has to show, made of the secret that a server shares with its SuperLink."""
    return sha256(b"control " + secret).hexdigest()
