// One subcommand's command line: flags, their values and their help. Values are kept as they were
// written; ranges belong to the library, which knows them. The only place that includes CLI11.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace cutaway::cli {

class Args {
 public:
  // `name` as in "cutaway run"; `help` is the first paragraph of its --help.
  Args(const std::string& name, const std::string& help);
  ~Args();

  // Names the group under which the flags that follow appear in the help.
  void group(const std::string& name);
  // Text at the end of the help.
  void footer(const std::string& text);

  // Flags are written "-m,--model". `type` is the placeholder in the help. Outputs must outlive
  // parse(); a flag that is given twice is an error unless it takes a list.
  void flag(const std::string& flags, bool& out, const std::string& help);
  void text(const std::string& flags, std::optional<std::string>& out, const std::string& type,
            const std::string& help);
  void texts(const std::string& flags, std::vector<std::string>& out, const std::string& type,
             const std::string& help);
  void integer(const std::string& flags, std::optional<int64_t>& out, int64_t min, int64_t max,
               const std::string& type, const std::string& help);
  void unsigned_integer(const std::string& flags, std::optional<uint64_t>& out,
                        const std::string& type, const std::string& help);
  void number(const std::string& flags, std::optional<double>& out, const std::string& type,
              const std::string& help);
  void positional(const std::string& name, std::optional<std::string>& out,
                  const std::string& help);

  // argv[first …]. Nothing: go on. Otherwise the help was printed (0) or what is wrong was (2).
  std::optional<int> parse(int argc, char** argv, int first);

  // "cutaway run: MESSAGE" and where the help is, on stderr; returns kWrongUsage.
  int wrong_usage(const std::string& message) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The integer that `text` is, as a whole. Error kInvalidArgument: "FIELD: 'x' is not …".
Result<int64_t> parse_integer(const std::string& field, const std::string& text, int64_t min,
                              int64_t max);
Result<double> parse_number(const std::string& field, const std::string& text);
// "1,2,3"; at least one.
Result<std::vector<int64_t>> parse_integers(const std::string& field, const std::string& text,
                                            int64_t min, int64_t max);

}  // namespace cutaway::cli
