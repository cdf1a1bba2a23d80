#include "base/rust_bridge.h"

#include <ctime>

#include "cutaway_rust.h"

namespace cutaway {
namespace {

// A text of the library, freed at the end.
struct OwnedText {
  cutaway_text text = {nullptr, 0, 0};
  OwnedText() = default;
  ~OwnedText() { cutaway_text_free(&text); }
  OwnedText(const OwnedText&) = delete;
  OwnedText& operator=(const OwnedText&) = delete;
  std::string str() const { return std::string(text.data ? text.data : "", text.size); }
};

size_t write_time(void* user, cutaway_str format, char* out, size_t capacity) {
  const std::time_t seconds = static_cast<std::time_t>(*static_cast<int64_t*>(user) / 1'000'000);
  std::tm local = {};
  localtime_r(&seconds, &local);
  return std::strftime(out, capacity, std::string(format.data, format.size).c_str(), &local);
}

Error render_error(cutaway_status status, const std::string& message) {
  switch (status) {
    case CUTAWAY_RAISED:
      return {ErrorCode::kInvalidArgument, "the chat template refuses: " + message, "messages"};
    case CUTAWAY_LIMIT:
      return {ErrorCode::kInvalidArgument,
              "the chat template does more work than is allowed (" + message + ")", "messages"};
    case CUTAWAY_INTERNAL:
      return {ErrorCode::kInvalidArgument, "the template engine failed: " + message, "messages"};
    default:
      return {ErrorCode::kInvalidArgument, "the chat template failed: " + message, "messages"};
  }
}

}  // namespace

void declare_deep_stack(size_t size) { cutaway_stack_has(size); }

Result<std::unique_ptr<const RustTemplate>> RustTemplate::create(std::string_view source) {
  cutaway_template* handle = nullptr;
  OwnedText error;
  const cutaway_status status =
      cutaway_template_new({source.data(), source.size()}, &handle, &error.text);
  if (status != CUTAWAY_OK) {
    return Error{ErrorCode::kInvalidFile, "the chat template cannot be read: " + error.str(),
                 "tokenizer.chat_template"};
  }
  return std::unique_ptr<const RustTemplate>(new RustTemplate(handle));
}

RustTemplate::~RustTemplate() { cutaway_template_free(static_cast<cutaway_template*>(handle_)); }

Result<std::string> RustTemplate::render(std::string_view context, int64_t wall_us) const {
  OwnedText out;
  const cutaway_status status =
      cutaway_template_render(static_cast<const cutaway_template*>(handle_),
                              {context.data(), context.size()}, write_time, &wall_us, &out.text);
  if (status != CUTAWAY_OK) return render_error(status, out.str());
  return out.str();
}

}  // namespace cutaway
