"""The check that finds functions without a span, on a small program whose gaps are known."""

import contextlib
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import trace_coverage  # noqa: E402

HEADER = """
#pragma once
#include <vector>
namespace cutaway::ops {
class Layer {
 public:
  explicit Layer(int width);
  Layer(const Layer& other);
  ~Layer();
  int width() const { return width_; }
  int padded_width() const;
  int covered(int x) const;
  int uncovered(int x) const;
  int only_a_lambda_covers(int x) const;
  int only_a_callee_covers(int x) const;
  int a_guarded_lambda_covers(int x) const;
  int nothing_in_guarded_covers(int x) const;
  int never_entered(int x) const;
  int overloaded(int x) const { int y = x; y += width_; return y; }
  int overloaded(long x) const { long y = x; y += width_; return static_cast<int>(y); }
  template <typename T>
  T in_a_template(T x) const {
    T sum = x;
    for (int i = 0; i < width_; ++i) sum += x;
    return sum;
  }
 private:
  int width_;
};
int excused(const std::vector<int>& values);
}
"""

SOURCE = """
#include "ops/layer.h"
#include "trace/coverage_runtime.h"
using cutaway::trace::coverage::span_opened;
namespace cutaway::ops {
template <typename Body>
auto guarded(const char*, Body&& body) -> decltype(body()) {
  return body();
}
namespace {
int local(int x) { int y = x; y += 2; return y; }
}
Layer::Layer(int width) : width_(width) { span_opened(); width_ += 0; }
Layer::Layer(const Layer& other) : width_(other.width_) { int x = 1; width_ += x - 1; }
Layer::~Layer() { int x = 1; width_ += x; }
int Layer::padded_width() const { return width_ + 1; }
int Layer::covered(int x) const {
  span_opened();
  int y = local(x);
  return y + width();
}
int Layer::uncovered(int x) const {
  int y = covered(x);
  return y + 1;
}
int Layer::only_a_lambda_covers(int x) const {
  const auto f = [&](int z) { span_opened(); int y = z; return y + x; };
  int y = f(3);
  return y;
}
int Layer::only_a_callee_covers(int x) const {
  int y = covered(x);
  return y;
}
int Layer::a_guarded_lambda_covers(int x) const {
  return guarded("a test", [&]() -> int {
    span_opened();
    int y = x;
    return y + 1;
  });
}
int Layer::nothing_in_guarded_covers(int x) const {
  return guarded("a test", [&] { int y = covered(x); return y + 1; });
}
int Layer::never_entered(int x) const {
  int y = x;
  return y * y;
}
int excused(const std::vector<int>& values) {
  int sum = 0;
  for (int v : values) sum += v;
  return sum;
}
}
int main() {
  const cutaway::ops::Layer layer(3);
  const cutaway::ops::Layer copy(layer);
  int sum = layer.covered(1) + copy.uncovered(2) + layer.only_a_lambda_covers(3) +
            layer.a_guarded_lambda_covers(4) + layer.nothing_in_guarded_covers(4) +
            layer.only_a_callee_covers(4) + layer.in_a_template(5) + layer.padded_width() +
            cutaway::ops::excused({1, 2});
  return sum == 0;
}
"""


@unittest.skipUnless(all(map(shutil.which, ["g++", "ctags", "nm", "addr2line"])),
                     "needs g++, universal-ctags and binutils")
class TraceCoverageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        tree = pathlib.Path(cls.folder.name)
        (tree / "src" / "ops").mkdir(parents=True)
        (tree / "src" / "ops" / "layer.h").write_text(HEADER)
        (tree / "src" / "ops" / "layer.cc").write_text(SOURCE)
        cls.binary = tree / "program"
        subprocess.run(
            ["g++", "-std=c++20", "-O1", "-g1", "-finstrument-functions",
             "-finstrument-functions-exclude-file-list=/usr/,src/trace,src/base,src/tensor",
             f"-I{tree / 'src'}", f"-I{ROOT / 'src'}", str(tree / "src" / "ops" / "layer.cc"),
             str(ROOT / "src" / "trace" / "coverage_runtime.cc"), "-o", str(cls.binary)],
            check=True)
        cls.tree = tree

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def check(self, exceptions=""):
        """Exit status and output of the tool."""
        path = self.tree / "exceptions.txt"
        path.write_text(exceptions)
        out = io.StringIO()
        arguments = ["trace_coverage.py", "--bin", str(self.binary), "--command", "", "--root",
                     str(self.tree), "--folders", "ops", "--exceptions", str(path)]
        saved, sys.argv = sys.argv, arguments
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                status = trace_coverage.main()
        finally:
            sys.argv = saved
        return status, out.getvalue()

    def test_finds_exactly_the_gaps(self):
        status, out = self.check()
        self.assertEqual(status, 1, out)
        reported = [line.split(": ")[1].split("(")[0].split("::")[-1]
                    for line in out.splitlines() if ", no span" in line]
        # Not among them: width and in_a_template, which the header defines in line.
        self.assertEqual(sorted(reported), ["excused", "nothing_in_guarded_covers", "only_a_callee_covers",
                                            "only_a_lambda_covers", "uncovered"], out)
        self.assertIn("8 functions entered: 3 with a span, 0 excused, 5 without", out)

    def test_overloads_in_a_header_are_in_line_whatever_their_first_line_is(self):
        declared = trace_coverage.Declared(self.tree, ["ops"], False)
        for path in (str(self.tree / "src" / "ops" / "layer.h"), "/usr/include/c++/12/span", "??"):
            self.assertFalse(declared.judged("cutaway::ops::Layer::overloaded",
                                             "cutaway::ops::Layer::overloaded(int) const", path, 3), path)
        self.assertTrue(declared.judged("cutaway::ops::Layer::uncovered",
                                        "cutaway::ops::Layer::uncovered(int) const", "??", 3))

    def test_exceptions_excuse_what_they_name(self):
        names = ["excused", "Layer::only_a_callee_covers", "Layer::only_a_lambda_covers",
                 "Layer::nothing_in_guarded_covers", "Layer::uncovered"]
        lines = [f"cutaway::ops::{name}: because this test says so\n" for name in names]
        status, out = self.check("# a comment\n" + "".join(lines))
        self.assertEqual(status, 0, out)
        self.assertIn("3 with a span, 5 excused, 0 without", out)
        status, out = self.check("".join(lines[1:]))
        self.assertEqual(status, 1, out)

    def test_exceptions_need_reasons_and_are_few(self):
        status, out = self.check("cutaway::ops::excused\n")
        self.assertEqual(status, 2)
        self.assertIn("exceptions.txt:1", out)
        many = "".join(f"cutaway::f{i}: one reason for all\n" for i in range(31))
        status, out = self.check(many)
        self.assertEqual(status, 2)
        self.assertIn("31 exceptions, at most 30", out)

    def test_a_program_without_the_runtime_is_no_success(self):
        other = self.binary
        try:
            type(self).binary = pathlib.Path(shutil.which("true"))
            status, out = self.check()
        finally:
            type(self).binary = other
        self.assertEqual(status, 2, out)
        self.assertIn("trace-coverage", out)


class NamesTest(unittest.TestCase):
    def test_qualified_names(self):
        cases = {
            "cutaway::text::Tokenizer::encode(std::span<int>, bool) const":
                "cutaway::text::Tokenizer::encode",
            "void cutaway::ops::run<int, (anonymous namespace)::X>(int)": "cutaway::ops::run",
            "cutaway::a::f(int) [clone .constprop.0]": "cutaway::a::f",
            "cutaway::(anonymous namespace)::f(int)": "cutaway::{anonymous}::f",
            "cutaway::a::f(int)::{lambda(int)#1}::operator()(int) const": None,
            "cutaway::a::B::operator()(int)": "cutaway::a::B::operator{}",
            "cutaway::Result<int> cutaway::a::g<float>(float)": "cutaway::a::g",
        }
        for symbol, name in cases.items():
            self.assertEqual(trace_coverage.qualified_name(symbol), name, symbol)

    def test_accessors(self):
        for body in ["return x_;", "", " return impl_->n; ", "x_ = x;",
                     "return static_cast<int>(x_.size());", "return a.b().c();"]:
            self.assertTrue(trace_coverage.is_accessor(body), body)
        for body in ["return f(x);", "a(); b();", "for (;;) x_++;", "return std::move(x_);"]:
            self.assertFalse(trace_coverage.is_accessor(body), body)


if __name__ == "__main__":
    unittest.main()
