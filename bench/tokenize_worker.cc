// Our side of tokenize.py: encodes the texts that it is asked for and says how long that took.
//
//   tokenize_worker
//
// A line of stdin is a request, a JSON object: {"vocabulary": a GGUF, "texts": a file of one JSON
// string a line, "warm": a file of texts to encode before, "ids": a file to write the ids to, as
// int32}. For each a line on stdout: {"seconds", "bytes", "tokens"}. The tokenizer is made anew
// each time, outside what is measured, so that it has seen none of the texts.
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
  if (request.contains("warm")) {
    for (const Segment& text : read_texts(request["warm"].get<std::string>())) {
      if (auto done = tokenizer->encode(std::span(&text, 1), options); !done.ok())
        return done.error();
    }
  }
  size_t bytes = 0, count = 0;
  const double begin = thread_seconds();
  for (const Segment& text : texts) {
    CUTAWAY_ASSIGN(const std::vector<EncodedToken> tokens,
                   tokenizer->encode(std::span(&text, 1), options));
    bytes += text.text.size();
    count += tokens.size();
  }
  const double seconds = thread_seconds() - begin;
  if (request.contains("ids")) {
    std::vector<int32_t> ids;
    for (const Segment& text : texts) {
      CUTAWAY_ASSIGN(const std::vector<EncodedToken> tokens,
                     tokenizer->encode(std::span(&text, 1), options));
      for (const EncodedToken& token : tokens) ids.push_back(token.id);
    }
    std::ofstream out(request["ids"].get<std::string>(), std::ios::binary);
    out.write(reinterpret_cast<const char*>(ids.data()),
              static_cast<std::streamsize>(ids.size() * sizeof(int32_t)));
  }
  return Json{{"seconds", seconds}, {"bytes", bytes}, {"tokens", count}};
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
