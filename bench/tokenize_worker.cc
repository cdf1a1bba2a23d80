// Our side of tokenize.py: encodes the texts that it is asked for and says how long that took.
//
//   tokenize_worker
//
// A line of stdin is a request, a JSON object: {"vocabulary": a GGUF, "texts": a file of one JSON
// string a line, "ids": a file to write the ids to, as int32 (left out: none)}. For each a line on
// stdout: {"seconds", "bytes", "tokens"}. The tokenizer is made anew each time, outside what is
// measured, so that it has seen none of the texts.
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "base/json.h"
#include "formats/gguf.h"
#include "text/tokenizer/tokenizer.h"

namespace {

using cutaway::Json;
using cutaway::Result;
using cutaway::text::EncodedToken;
using cutaway::text::EncodeOptions;
using cutaway::text::Segment;
using cutaway::text::Tokenizer;

// Processor time: what others do on the machine is not counted.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::vector<Segment> read_texts(const std::string& path) {
  std::ifstream lines(path);
  std::vector<Segment> texts;
  for (std::string line; std::getline(lines, line);) {
    texts.push_back({Json::parse(line).get<std::string>(), true});
  }
  return texts;
}

Result<Json> answer(const Json& request) {
  CUTAWAY_ASSIGN(const auto file,
                 cutaway::formats::open_gguf(request["vocabulary"].get<std::string>()));
  CUTAWAY_ASSIGN(const auto tokenizer, Tokenizer::create(file->metadata));
  const std::vector<Segment> texts = read_texts(request["texts"].get<std::string>());
  // SmolLM2's vocabulary lacks some bytes; the peer leaves them out.
  const EncodeOptions options{.add_special = false, .drop_unencodable = true};
  std::vector<std::vector<EncodedToken>> encoded(texts.size());
  const double begin = thread_seconds();
  for (size_t i = 0; i < texts.size(); ++i) {
    CUTAWAY_ASSIGN(encoded[i], tokenizer->encode(std::span(&texts[i], 1), options));
  }
  const double seconds = thread_seconds() - begin;
  size_t bytes = 0;
  std::vector<int32_t> ids;
  for (size_t i = 0; i < texts.size(); ++i) {
    bytes += texts[i].text.size();
    for (const EncodedToken& token : encoded[i]) ids.push_back(token.id);
  }
  if (request.contains("ids")) {
    std::ofstream out(request["ids"].get<std::string>(), std::ios::binary);
    out.write(reinterpret_cast<const char*>(ids.data()),
              static_cast<std::streamsize>(ids.size() * sizeof(int32_t)));
  }
  return Json{{"seconds", seconds}, {"bytes", bytes}, {"tokens", ids.size()}};
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const auto answered = answer(Json::parse(line));
    if (!answered.ok()) {
      std::fprintf(stderr, "tokenize_worker: %s\n", answered.error().message.c_str());
      return 1;
    }
    std::printf("%s\n", answered->dump().c_str());
    std::fflush(stdout);
  }
}
