// Chat templates: messages → segments. Rendered by minijinja through the Rust library, with the
// environment that transformers gives (tojson, raise_exception, strftime_now, loop controls).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "text/tokenizer/tokenizer.h"

namespace cutaway::text {

class ChatTemplate {
 public:
  // Parses the template's source. Error kInvalidFile with minijinja's message and line.
  // `control_spellings`: those of the model's tokenizer (see below). They matter for a template
  // whose logic looks into contents; without them, literals of the template that look like control
  // tokens are taken for such.
  static Result<std::shared_ptr<const ChatTemplate>> create(
      std::string source, std::string bos_token, std::string eos_token,
      std::vector<std::string> control_spellings = {});
  virtual ~ChatTemplate() = default;

  struct Input {
    Json messages = Json::array();  // [{"role","content",…}], as transformers passes them
    Json tools = nullptr;           // array, or null
    bool add_generation_prompt = true;
    Json extra = Json::object();  // further variables (enable_thinking, …)
  };

  // Text that came from the input (contents, names, tool texts) is in segments with parse_special =
  // false, the template's own text in segments with parse_special = true. Concatenated, they are
  // what Jinja2 would give. Errors are kInvalidArgument: what the template raised, a role that it
  // refuses, a fuel limit.
  virtual Result<std::vector<Segment>> render(const Input& input) const = 0;
  virtual const std::string& source() const = 0;
};

// The spellings of a tokenizer's control tokens, for ChatTemplate::create().
std::vector<std::string> control_spellings(const Tokenizer& tokenizer);

}  // namespace cutaway::text
