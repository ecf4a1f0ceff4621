"""Every use of Flower that its authors do not promise to keep. All else imports from here, or what is public.

`tests/deployment/test_flower_internals.py` holds this list against the imports below this folder, and fails with the
use that broke when a new Flower changes it. Each entry: the module, what is taken of it (and by which file), why, and
what Flower would have to offer for us to drop it.

flwr.app.message: make_message (patient_grid)
    why: an error in the name of a site whose answer never comes whole, when its question is no longer at hand
    until: `Message` takes an error for the id of a question
flwr.cli.build: build_fab_from_files (connections)
    why: StartRun takes nothing but an app bundle; ours holds names and no code
    until: a run can be started without a bundle
flwr.common.constant: ErrorCode (patient_grid)
    why: to tell a question that got lost, which is asked again, from a site that broke
    until: the codes of `Error` are public
flwr.common.constant: SubStatus (connections)
    why: how a task ended, in the words that a SuperLink takes
    until: tasks have a public client
flwr.common.serde: run_from_proto (connections)
    why: the grid wants to be given the run that it is for
    until: tasks have a public client
flwr.proto.control_pb2: ListNodesRequest, ListRunsRequest, RegisterNodeRequest, StartRunRequest,
        UnregisterNodeRequest (connections)
    why: keys are registered and a run is started by this process, not by the `flwr` command and its settings files
    until: Control has a public client
flwr.proto.fleet_pb2: ActivateNodeRequest, DeactivateNodeRequest (connections)
    why: a site finds out in a moment whether it is let in; a SuperNode that is not ends after seconds of work
    until: a SuperNode waits until it is let in, and says so
flwr.proto.message_pb2: ConfirmMessageReceivedRequest (patient_grid)
    why: the grid fetches answers piece by piece, without waiting
    until: the grid has a time limit for each answer
flwr.proto.runtime_pb2: AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest,
        SendTaskHeartbeatRequest (connections)
    why: tasks are done in this process, which has the model; Flower would start one for each, with code it was sent
    until: tasks have a public client
flwr.proto.runtime_pb2: PullAppMessagesRequest (patient_grid)
    why: the grid fetches answers piece by piece, without waiting
    until: the grid has a time limit for each answer
flwr.server.superlink.linkstate: SqlLinkState, linkstate_factory (superlink)
    why: patched: a SuperLink takes no key twice, also of a site that was taken out by mistake or has changed its name
    until: unregistering forgets the key
flwr.supercore: heartbeat (supernode)
    why: patched: a site that was killed is let in again after twice this time; 20 s instead of 60
    until: a SuperNode has an option for the interval
flwr.supercore.constant: NodeStatus, TaskType (connections)
    why: which sites are connected; which tasks to take
    until: Control and tasks have public clients
flwr.supercore.control: ControlHttpClient (connections)
    why: as flwr.proto.control_pb2
    until: Control has a public client
flwr.supercore.heartbeat: HeartbeatSender (connections)
    why: a task that nobody is known to work on is given up; Flower's own function ends the process on a bad answer
    until: tasks have a public client
flwr.supercore.inflatable.inflatable_object: iterate_object_tree (patient_grid)
    why: the pieces of an answer
    until: the grid has a time limit for each answer
flwr.supercore.inflatable.inflatable_protobuf_utils: make_pull_object_fn_protobuf (patient_grid)
    why: fetches one piece
    until: the grid has a time limit for each answer
flwr.supercore.inflatable.inflatable_utils: ObjectPullError, ObjectUnavailableError,
        inflate_object_from_contents (patient_grid)
    why: tells a piece that has not come from one that never will, and puts the pieces together
    until: the grid has a time limit for each answer
flwr.supercore.interceptors: RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor,
        SuperExecAuthHttpInterceptor (connections)
    why: nobody is answered without a version, and nobody is given a task without the secret
    until: Control and tasks have public clients
flwr.supercore.retry: http_retry (supernode)
    why: patched: a site that lost its server tries again after 5 s at most instead of 20
    until: a SuperNode has an option for it
flwr.supercore.run: RunNotRunningException (connections)
    why: a run that the SuperLink gave up ends in one line
    until: the exceptions of `Grid` are public
flwr.supercore.runtime: RuntimeHttpClient (connections)
    why: as flwr.proto.runtime_pb2
    until: tasks have a public client
flwr.supercore.state.schema.linkstate_models: Node (superlink)
    why: the table with the keys, see flwr.server.superlink.linkstate
    until: unregistering forgets the key
flwr.supercore.task_identity: TaskIdentity (connections)
    why: a `Message` looks up here on whose behalf it is made
    until: `Message` is made by a grid, for its own run
flwr.supercore.utils: uint64_to_int64 (superlink)
    why: how a node's id is written in that table
    until: unregistering forgets the key
flwr.superlink: extensions (superlink)
    why: patched: Control and Runtime ask nobody who they are; here they are open to this machine only
    until: they can listen on a port of their own, or ask for a secret
flwr.superlink.cli: flower_superlink (superlink)
    why: the command, started by us after the patches
    until: nothing is patched
flwr.superlink.grid: HttpGrid (patient_grid)
    why: patched: what it waits for, and for how long
    until: the grid has a time limit for each answer, and for a SuperLink that is gone
flwr.supernode: fleet_http_connection, start_client_internal (supernode)
    why: patched: the same interval again; a look for a question every half second instead of three
    until: a SuperNode has options for both
flwr.supernode.cli: flower_supernode (supernode)
    why: the command, started by us after the patches
    until: nothing is patched
flwr.supernode.fleet_http_client: FleetHttpClient (connections)
    why: as flwr.proto.fleet_pb2
    until: a SuperNode waits until it is let in, and says so
flwr.supernode.node_auth_http_interceptor: NodeAuthHttpInterceptor (connections)
    why: shows a site's key
    until: a SuperNode waits until it is let in, and says so
flwr.supernode.runtime.run_clientapp: pull_task_input, push_message, push_task_output (connections)
    why: as flwr.proto.runtime_pb2: a question, and the pieces of its answer
    until: tasks have a public client
"""

HEARTBEAT = 10  # seconds between a SuperNode's signs of life; after twice as many without one it counts as gone
CONNECTED = ("SuperNode ID", "Connection successful")  # in a SuperNode's log
NOT_CONNECTED = "Connection attempt failed"
