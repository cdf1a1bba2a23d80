// Renders chat templates for tools/check_templates.py. One JSON object a line in: {"template",
// "bos", "eos", "controls", "messages", "tools", "add_generation_prompt", "extra"}; one a line out:
// {"ok", "text", "segments": [[text, trusted], …]} or {"ok", "code", "error"}.
#include <iostream>
#include <string>

#include "base/json.h"
#include "text/chat/chat_template.h"

namespace cutaway::text {
namespace {

Result<Json> answer(const Json& request) {
  CUTAWAY_ASSIGN(auto chat_template,
                 ChatTemplate::create(request.at("template").get<std::string>(),
                                      request.value("bos", ""), request.value("eos", ""),
                                      request.value("controls", std::vector<std::string>{})));
  ChatTemplate::Input input;
  input.messages = request.at("messages");
  input.tools = request.value("tools", Json(nullptr));
  input.add_generation_prompt = request.value("add_generation_prompt", true);
  input.extra = request.value("extra", Json::object());
  CUTAWAY_ASSIGN(const std::vector<Segment> segments, chat_template->render(input));
  Json out = {{"ok", true}, {"text", ""}, {"segments", Json::array()}};
  std::string text;
  for (const Segment& segment : segments) {
    text += segment.text;
    out["segments"].push_back(Json::array({segment.text, segment.parse_special}));
  }
  out["text"] = text;
  return out;
}

}  // namespace
}  // namespace cutaway::text

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const auto out = cutaway::text::answer(cutaway::Json::parse(line));
    const cutaway::Json json =
        out.ok() ? *out
                 : cutaway::Json{{"ok", false},
                                 {"code", cutaway::error_code_name(out.error().code)},
                                 {"error", out.error().message}};
    std::cout << cutaway::to_text(json) << "\n";
  }
}
