"""Uses of Flower's private interfaces: all are in one package, and have the names, signatures and values that it needs.

If a new version of Flower changes one of them, a test names it; `flower_internals` has the reason for its use.
"""

import ast
import doctest
import importlib
import inspect
import re
import sys
from pathlib import Path

import pytest
from flwr.app import Message, RecordDict
from flwr.common import constant as common_constant
from flwr.common.constant import ErrorCode, SubStatus
from flwr.supercore import constant as core_constant
from flwr.supercore.constant import NodeStatus, TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.superlink import extensions
from flwr.superlink.grid import HttpGrid
from flwr.superlink.main import create_app
from flwr.supernode.fleet_http_client import FleetHttpClient
from starlette.testclient import TestClient

import fedcopl.deployment
from fedcopl.deployment import OFFLINE, flower_internals, message_format
from fedcopl.deployment.flower_internals import (
    CONTROL_HEADER,
    connections,
    site_connection,
    superlink,
)
from fedcopl.deployment.server import server_process

ROOT = Path(__file__).parents[2]
INTERNALS = Path(flower_internals.__file__).parent
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.simulation"}
TESTS_OF_INTERNALS = {"toolbox.py", "test_grid_threads.py", "test_flower_internals.py", "test_upload_limit.py"}
SOURCES = [
    *(ROOT / "src/fedcopl").rglob("*.py"),
    *(ROOT / "experiments").rglob("*.py"),
    *(ROOT / "tools").rglob("*.py"),
    *(ROOT / "benchmarks").rglob("*.py"),
    *(file for file in (ROOT / "tests").rglob("*.py") if file.name not in TESTS_OF_INTERNALS),
]


def private_imports(file: Path) -> set[tuple[str, str]]:
    """Return (module, name) of each private import of Flower in a file."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "flwr"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flwr" and not node.level:
            names |= {(node.module, alias.name) for alias in node.names if node.module not in PUBLIC}
    return names


USED = {(file.stem, *one) for file in INTERNALS.glob("*.py") for one in private_imports(file)}
SECTION = re.compile(r"^\w[\w ]* \((\w+)\)\n    why: \S.*\n    until: \S.*\n", re.MULTILINE)


# All uses are in one package


def test_the_import_walk_finds_private_imports():
    assert len(SOURCES) > 200 and INTERNALS / "superlink.py" in SOURCES
    assert len(USED) > 40


def test_only_flower_internals_imports_private_modules():
    others = {str(file): private_imports(file) for file in SOURCES if INTERNALS not in file.parents}
    assert {file: names for file, names in others.items() if names} == {}


def test_every_file_with_private_imports_has_its_reasons():
    assert set(SECTION.findall(flower_internals.__doc__)) == {file for file, *_ in USED}


def test_flower_is_patched_in_this_package_only():
    package = Path(fedcopl.deployment.__file__).parent
    for file in package.rglob("*.py"):
        patches = re.findall(r"\bsetattr\(|\.__dict__\[|TaskIdentity", file.read_text())
        assert not patches or INTERNALS in file.parents, file


# Names, signatures and values


@pytest.mark.parametrize(("file", "module", "name"), sorted(USED), ids=lambda one: one)
def test_the_private_name_exists(file, module, name):
    assert hasattr(importlib.import_module(module), name)


CALLS = {  # functions and classes of Flower -> positional and keyword arguments of our calls
    (connections, "HttpGrid"): ((1, 2, 3), ("token",)),
    (connections, "build_fab_from_files"): ((1,), ()),
    (connections, "run_from_proto"): ((1,), ()),
    (connections, "HeartbeatSender"): ((1,), ()),
    (connections, "RuntimeTokenHttpInterceptor"): ((1,), ()),
    (connections, "RuntimeVersionHttpInterceptor"): ((), ("component_name",)),
    (connections, "SuperExecAuthHttpInterceptor"): ((), ("master_secret", "protected_methods")),
    (site_connection, "NodeAuthHttpInterceptor"): ((1, 2), ()),
    (site_connection, "RuntimeVersionHttpInterceptor"): ((), ("component_name",)),
    (site_connection, "remove_content_from_message"): ((1,), ()),
    (site_connection, "message_to_proto"): ((1,), ()),
    (site_connection, "get_object_tree"): ((1,), ()),
    (site_connection, "get_all_nested_objects"): ((1,), ()),
    (site_connection, "iterate_object_tree"): ((1,), ()),
    (site_connection, "make_pull_object_fn_protobuf"): ((1, 2, 3), ()),
    (site_connection, "make_push_object_fn_protobuf"): ((1, 2, 3, 4), ()),
    (site_connection, "make_confirm_message_received_fn_protobuf"): ((1, 2, 3), ()),
    (site_connection, "inflate_object_from_contents"): ((1, 2), ()),
    (superlink, "flower_superlink"): ((), ()),
}


@pytest.mark.parametrize(("where", "call"), CALLS.items(), ids=lambda one: one[1] if one in CALLS else "")
def test_the_signature_fits_our_calls(where, call):
    module, name = where
    values, named = call
    inspect.signature(getattr(module, name)).bind(*values, **dict.fromkeys(named))


def test_a_message_belongs_to_a_run_and_its_id_can_be_set():
    connections.set_sender(task=1, run=5, node=1)
    metadata = Message(RecordDict(), 7, "query.x").metadata
    assert metadata.run_id == 5  # read where `set_sender` writes it
    assert "_message_id" in metadata.__dict__
    metadata.__dict__["_message_id"] = "mine"
    assert metadata.message_id == "mine"
    connections.set_sender(task=1, run=1, node=1)  # as in `toolbox`


CLIENTS = {
    ControlHttpClient: ("ListNodes", "ListRuns", "RegisterNode", "StartRun", "UnregisterNode"),
    FleetHttpClient: ("ActivateNode", "DeactivateNode"),
    RuntimeHttpClient: (*("AcquireTask", "PullTaskInput", "PushTaskOutput", "SendTaskHeartbeat"),),
}


@pytest.mark.parametrize(("client", "methods"), CLIENTS.items(), ids=lambda one: getattr(one, "__name__", ""))
def test_the_clients_have_the_methods_we_call(client, methods):
    inspect.signature(client.from_server_address).bind(
        server_address=1, insecure=2, root_certificates=3, interceptors=4
    )
    inspect.signature(client.from_server_address).bind(1, 2, 3, 4)
    for method in methods:
        inspect.signature(getattr(client, method)).bind(None, None)
    assert callable(client.close) and callable(client.__enter__)


FIELDS = {  # protobuf message -> fields that are written or read
    "control_pb2.ListNodesRequest": "",
    "control_pb2.ListNodesResponse": "nodes_info",
    "control_pb2.ListRunsRequest": "run_id",
    "control_pb2.ListRunsResponse": "run_dict",
    "control_pb2.RegisterNodeRequest": "public_key name",
    "control_pb2.StartRunRequest": "fab",
    "control_pb2.StartRunResponse": "run_id",
    "control_pb2.UnregisterNodeRequest": "node_id",
    "fab_pb2.Fab": "content",
    "fleet_pb2.ActivateNodeRequest": "public_key heartbeat_interval",
    "fleet_pb2.ActivateNodeResponse": "node_id",
    "fleet_pb2.DeactivateNodeRequest": "node_id",
    "fleet_pb2.PullMessagesRequest": "node",
    "fleet_pb2.PullMessagesResponse": "messages_list message_object_trees",
    "fleet_pb2.PushMessagesRequest": "node messages_list message_object_trees clientapp_runtime_list",
    "fleet_pb2.PushMessagesResponse": "objects_to_push session_id",
    "heartbeat_pb2.SendNodeHeartbeatRequest": "node heartbeat_interval",
    "heartbeat_pb2.SendNodeHeartbeatResponse": "success",
    "message_pb2.Metadata": "message_id src_node_id reply_to_message_id",
    "message_pb2.ObjectTree": "object_id",
    "node_pb2.Node": "node_id",
    "node_pb2.NodeInfo": "node_id name public_key status last_activated_at",
    "run_pb2.Run": "run_id bytes_sent bytes_recv",
    "runtime_pb2.AcquireTaskRequest": "supported_task_types",
    "runtime_pb2.AcquireTaskResponse": "token",
    "runtime_pb2.PullTaskInputRequest": "",
    "runtime_pb2.PullTaskInputResponse": "task_id run context",
    "runtime_pb2.PushTaskOutputRequest": "sub_status details",
    "runtime_pb2.SendTaskHeartbeatRequest": "",
}


@pytest.mark.parametrize(("message", "fields"), FIELDS.items(), ids=FIELDS)
def test_a_message_has_the_fields_we_use(message, fields):
    module, name = message.split(".")
    kind = getattr(importlib.import_module(f"flwr.proto.{module}"), name)
    assert set(fields.split()) <= {field.name for field in kind.DESCRIPTOR.fields}


def test_the_fields_of_every_protobuf_message_in_use_are_checked():
    used = {name for file in INTERNALS.glob("*.py") for name in re.findall(r"\b\w+_pb2\.\w+", file.read_text())}
    assert len(used) > 10 and used <= set(FIELDS)


def test_requests_of_a_site_have_the_header_by_which_its_bytes_are_counted():
    assert "FLEET_HTTP_PUBLIC_KEY_HEADER" in inspect.getsource(site_connection.NodeAuthHttpInterceptor)


def test_constants_have_the_expected_values():
    codes = ("UNKNOWN", "MESSAGE_UNAVAILABLE", "REPLY_MESSAGE_UNAVAILABLE", "NODE_UNAVAILABLE", "CLIENT_APP_CRASHED")
    assert [getattr(ErrorCode, name) for name in codes] == [0, 3, 4, 5, 8]
    assert (SubStatus.COMPLETED, SubStatus.FAILED) == ("completed", "failed")
    assert (NodeStatus.ONLINE, NodeStatus.UNREGISTERED) == ("online", "unregistered")
    assert (TaskType.SERVER_APP, TaskType.CLIENT_APP) == ("flwr-serverapp", "flwr-clientapp")
    # Ten seconds is the minimum of a SuperLink, which disconnects a node after twice that time.
    assert flower_internals.ANNOUNCED_HEARTBEAT == common_constant.HEARTBEAT_MIN_INTERVAL
    assert common_constant.HEARTBEAT_PATIENCE == 2
    assert f'"{connections._ACQUIRE}"' in inspect.getsource(RuntimeHttpClient)


def test_flower_still_reads_the_offline_variables():
    telemetry = importlib.import_module("flwr.supercore.telemetry")
    sources = "".join(map(inspect.getsource, (common_constant, core_constant, telemetry)))
    for switch in {*OFFLINE, *server_process._superlink_environment(Path("x"))}:
        assert f'"{switch}"' in sources or not switch.startswith("FLWR_")


OPTIONS = {
    "flwr.superlink.cli.flower_superlink": ("_parse_args_run_superlink", server_process._superlink),
}


@pytest.mark.parametrize(("module", "how"), OPTIONS.items(), ids=OPTIONS)
def test_flower_still_has_the_options_we_pass(module, how):
    parser, ours = how
    known = getattr(sys.modules[module], parser)()._option_string_actions
    given = re.findall(r'"(--[a-z-]+)"', inspect.getsource(ours))
    assert len(given) >= 6 and set(given) <= set(known)


# The patch


@pytest.fixture
def unpatched(monkeypatch):
    """Restores the function after the test."""
    monkeypatch.setattr(extensions, "get_middleware", extensions.get_middleware)


def status_of_post(client, path, key="key"):
    made = TestClient(create_app(None), client=(client, 5), raise_server_exceptions=False)
    return made.post(path, headers={CONTROL_HEADER: key}).status_code


PATHS = {"/v1/fleet/activate-node": True, "/v1/control/list-nodes": False, "/v1/runtime/acquire-task": False}


def test_the_paths_of_a_superlink_are_those_of_its_interfaces():
    paths = create_app(None).openapi()["paths"]
    assert set(PATHS) <= set(paths)
    # The paths of the other interfaces have other prefixes.
    fleet = {path for path, methods in paths.items() if "Fleet" in str(next(iter(methods.values())).get("tags"))}
    assert fleet == {path for path in paths if path.startswith(superlink._FOR_SITES)}
    assert {superlink._PULL, *superlink._UPLOADS} <= fleet


@pytest.mark.parametrize(("path", "for_sites"), PATHS.items())
def test_a_patched_superlink_is_open_to_sites_only(unpatched, path, for_sites):
    before = status_of_post("192.0.2.1", path)
    assert before != 404
    superlink._patch_superlink((), "key", 1000)
    assert status_of_post("192.0.2.1", path) == (before if for_sites else 404)
    assert status_of_post("127.0.0.1", path) != 404
    assert (status_of_post("127.0.0.1", path, key="guess") == 404) is path.startswith(superlink._FOR_OPERATOR)


def test_the_bundle_of_a_run_is_an_archive():
    bundle = connections.build_fab_from_files({"pyproject.toml": connections._APP.encode()})[0]
    assert bundle[:2] == b"PK"


def test_a_server_checks_the_health_of_its_superlink():
    assert TestClient(create_app(None)).get("/health").status_code == 200


def test_the_grid_has_the_attributes_we_use():
    grid = HttpGrid(token="t")
    assert grid.node.node_id == 1
    assert callable(grid.set_run) and callable(grid.close)


@pytest.mark.parametrize("module", [message_format], ids=lambda module: module.__name__)
def test_doctests_of_flower_internals(module):
    result = doctest.testmod(module)
    assert result.attempted > 0 and result.failed == 0
