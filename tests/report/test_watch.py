"""`hsfl report --watch`: two addresses on this machine, news of a run as its rounds end."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from hsfl.errors import InputError
from hsfl.files import write_json
from hsfl.report.watch import make_server, unseen_data
from hsfl.runs.run_folder.folder import RunFolder
from tests.naming import names, raises
from tests.report.fabricated import record, records, write_run


@pytest.fixture
def under_way(tmp_path: Path) -> RunFolder:
    return write_run(tmp_path, "hsfl", 0, records([0.1, 0.2]), None)


@pytest.fixture
def port(under_way: RunFolder) -> Iterator[int]:
    server = make_server([under_way.path])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_the_page_and_its_news(port, under_way):
    answer, body = ask(port, "/")
    assert answer.status == 200
    assert b'data-watch="yes"' in body
    first = json.loads(ask(port, "/data")[1])
    assert first["data"]["runs"][0]["rounds"]["round"] == [1, 2]
    again = f"/data?version={first['version']}&have=1:2"
    assert ask(port, again)[0].status == 204
    under_way.append(record(3, 0.3))
    news = json.loads(ask(port, again)[1])
    run = news["data"]["runs"][0]
    assert (run["from"], run["rounds"]["round"]) == (1, [2, 3])  # the last known one again, and the new one
    assert run["num_rounds"] == 3
    assert news["data"]["series"][0]["curves"]["test_accuracy"]["rounds"]["mean"] == [0.1, 0.2, 0.3]
    write_json(under_way.summary_path, {"status": "finished", "rounds": 3})
    assert json.loads(ask(port, again)[1])["data"]["runs"][0]["status"] == "finished"


def test_nothing_else_is_served(port):
    for path in ("/rounds.jsonl", "/../config.json", "/data/", "/%2e%2e/config.json"):
        assert ask(port, path)[0].status == 404, path
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
        assert ask(port, "/", method)[0].status == 501, method
    assert ask(port, "/", Host=f"evil.example:{port}")[0].status == 403
    assert ask(port, "/", Host=f"localhost:{port}")[0].status == 200


def test_a_folder_that_goes_is_said_and_comes_back(port, under_way):
    text = under_way.config_path.read_text()
    under_way.config_path.unlink()
    answer, body = ask(port, "/data")
    assert answer.status == 503
    assert b"holds no run" in body
    under_way.config_path.write_text(text)
    assert ask(port, "/data")[0].status == 200


@pytest.mark.parametrize("have", ["", "1:5", "2:2", "1:2,1:2", "x", "1:-1", "1:²", "1:" + "9" * 5000])
def test_a_page_that_has_something_else_gets_all(have):
    run = {"gantt_every": 1, "num_rounds": 3, "rounds": {"round": [1, 2, 3]}}
    assert unseen_data({"runs": [run]}, have)["runs"] == [run]


def test_a_taken_port_is_one_line(port, under_way):
    with raises(InputError, f"port {port}"):
        make_server([under_way.path], port)


def test_ctrl_c_ends_it_cleanly(under_way):
    command = [sys.executable, "-m", "hsfl.cli", "report", "--watch", str(under_way.path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
    assert process.stdout is not None
    found = re.search(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
    assert found
    assert ask(int(found[1]), "/")[0].status == 200
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert (process.returncode, said) == (0, "")


@pytest.mark.parametrize("there", [False, True])
def test_a_run_that_is_not_there_yet_is_waited_for(tmp_path, capsys, there):
    place = tmp_path / "hsfl" / "seed-0"
    if there:
        place.mkdir(parents=True)
    server = make_server([place])
    names(capsys.readouterr().err, "no run")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        answer, body = ask(server.server_port, "/")
        assert answer.status == 200
        assert b"No run is there yet" in body
        assert json.loads(ask(server.server_port, "/data")[1])["data"]["waiting"]
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text("{")
        names(json.loads(ask(server.server_port, "/data")[1])["data"]["waiting"], "config.json", "read")
        write_run(tmp_path, "hsfl", 0, records([0.1]), None)
        assert json.loads(ask(server.server_port, "/data")[1])["data"]["runs"][0]["num_rounds"] == 1
        assert b"HSFL: resnet18" in ask(server.server_port, "/")[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_malformed_request_is_answered_and_an_idle_connection_closed(under_way, monkeypatch):
    from hsfl.report import watch

    monkeypatch.setattr(watch._Handler, "timeout", 0.2)
    server = make_server([under_way.path])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as idle:
            with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as broken:
                broken.sendall(b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n")
                assert broken.recv(100).split()[1] == b"400"
            assert idle.recv(1) == b""  # closed by the other side
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_usual_port_may_be_left_out(under_way):
    server = make_server([under_way.path])
    try:
        handler = server.RequestHandlerClass.__new__(server.RequestHandlerClass)
        handler.server = server
        assert "127.0.0.1" not in handler._allowed_hosts()
        server.server_port = 80
        assert "127.0.0.1" in handler._allowed_hosts()
    finally:
        server.server_close()


def test_a_connection_that_is_reset_is_nothing_to_tell_of(under_way, capsys):
    server = make_server([under_way.path])
    try:
        for error in (BrokenPipeError(), ConnectionResetError()):
            try:
                raise error
            except ConnectionError:
                server.handle_error(None, ("127.0.0.1", 1))
        assert capsys.readouterr().err == ""
        try:
            raise ValueError
        except ValueError:
            server.handle_error(None, ("127.0.0.1", 1))
        assert "ValueError" in capsys.readouterr().err
    finally:
        server.server_close()
