"""Flower's messages as lines of an audit log: how many bytes they are, and of what digest."""

import json
from hashlib import sha256
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from ..audit_log import LONGEST, Crossing
from .message_format import TERMS, one_line


def content_bytes(records: RecordDict) -> bytes:
    """Everything that a message holds, in one order: the same bytes at both ends of the wire."""
    parts: list[bytes] = []
    for name in sorted(records):
        parts.append(name.encode())
        record = records[name]
        if isinstance(record, ConfigRecord):
            arrays: dict[str, Any] = {key: value for key, value in record.items() if _are_bytes(value)}
            plain = {key: value for key, value in record.items() if key not in arrays}
            parts.append(json.dumps(plain, sort_keys=True, default=_as_text).encode())
            for key in sorted(arrays):
                parts += [key.encode(), *arrays[key]]
            continue
        for key, value in sorted(record.items()):
            parts.append(str(key).encode())
            array = getattr(value, "data", None)
            parts.append(array if isinstance(array, bytes) else repr(value).encode())
    return b"\n".join(parts)


def _are_bytes(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, bytes) for one in value)


def _as_text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else repr(value)


def crossing(message: Message, way: str, peer: str, decision: str, question: Message | None = None) -> Crossing:
    """A message as it crosses; what run and round it is of, an answer says by its question."""
    about = question or message
    terms = about.content.config_records.get(TERMS, ConfigRecord()) if about.has_content() else ConfigRecord()
    content = content_bytes(message.content) if message.has_content() else str(message.error.reason).encode()
    return Crossing(
        way=way,
        peer=one_line(peer),
        run=one_line(terms.get("run", "")),
        round=one_line(about.metadata.group_id),
        kind=one_line(about.metadata.message_type.removeprefix("query.")),
        bytes=len(content),
        digest=sha256(content).hexdigest(),
        decision=one_line(decision)[:LONGEST],
    )
