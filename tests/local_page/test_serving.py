"""Ports and tokens."""

import re
import socket
import stat
from types import SimpleNamespace

import pytest

from fedcopl.errors import ConfigError
from fedcopl.local_page.serving import _HOST, persistent_token, serve


def test_a_taken_port_is_one_sentence():
    with socket.socket() as taken:
        taken.bind((_HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port {port}: cannot be used: Address already in use"):
            serve(lambda keys: None, port=port, token="x", open_it=False)


def test_a_persistent_token_is_equal_for_the_same_folder_only(tmp_path):
    key = tmp_path / "deep" / "watch.key"
    token = persistent_token(key, "/runs/a")
    assert persistent_token(key, "/runs/a") == token
    assert persistent_token(key, "/runs/b") != token
    assert persistent_token(tmp_path / "other.key", "/runs/a") != token  # another user
    assert len(token) == 32
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_without_a_stored_key_the_token_is_new_and_long(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "short.key").write_bytes(b"abc")  # a key that anybody could guess is not used
    for key in (tmp_path / "file" / "watch.key", tmp_path / "short.key"):
        one, other = persistent_token(key, "a"), persistent_token(key, "a")
        assert one != other
        assert min(len(one), len(other)) >= 32


def test_each_start_prints_an_address_with_a_new_token(monkeypatch, capsys):
    # uvicorn.Config would reconfigure logging for the whole process, and close the handlers of pytest.
    monkeypatch.setattr("uvicorn.Config", lambda app, **settings: None)
    monkeypatch.setattr("uvicorn.Server", lambda settings: SimpleNamespace(run=lambda sockets: None))
    for _ in range(2):
        serve(lambda keys: None, port=0, open_it=False)
    tokens = re.findall(r"http://127.0.0.1:\d+/\?token=(\S+)", capsys.readouterr().out)
    assert len(set(tokens)) == 2
    assert min(map(len, tokens)) >= 32
