"""Ports and tokens."""

import socket
import stat

import pytest

from fedcopl.errors import ConfigError
from fedcopl.local_page.serving import HOST, new_token, persistent_token, serve


def test_a_taken_port_is_one_sentence():
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port {port}: cannot be used: Address already in use"):
            serve(lambda keys: None, port=port, token="x", open_it=False)


def test_new_tokens_are_long_and_new():
    assert new_token() != new_token()
    assert len(new_token()) >= 32


def test_a_lasting_token_is_the_same_for_the_same_folder_only(tmp_path):
    key = tmp_path / "deep" / "watch.key"
    token = persistent_token(key, "/runs/a")
    assert persistent_token(key, "/runs/a") == token
    assert persistent_token(key, "/runs/b") != token
    assert persistent_token(tmp_path / "other.key", "/runs/a") != token  # another user
    assert len(token) == 32
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_where_no_key_can_be_kept_the_token_is_new(tmp_path):
    (tmp_path / "file").write_text("")
    assert persistent_token(tmp_path / "file" / "watch.key", "a") != persistent_token(
        tmp_path / "file" / "watch.key", "a"
    )
    (tmp_path / "short.key").write_bytes(b"abc")  # a key that anybody could guess is not used
    assert persistent_token(tmp_path / "short.key", "a") != persistent_token(tmp_path / "short.key", "a")
