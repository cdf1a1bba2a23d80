#include <fmt/format.h>

#include <algorithm>

#include "api/impl.h"
#include "api/page_assets.h"
#include "cutaway/views.h"

namespace cutaway {
namespace {

constexpr size_t kMostBytes = size_t{1} << 30;

// JSON inside a script element: nothing in it may look like the element's end, or a comment. "<"
// occurs in strings only, where \u003c means the same.
std::string embedded(const Json& data) {
  const std::string text = to_text(data);
  std::string out;
  out.reserve(text.size() + text.size() / 16);
  for (const char c : text) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

Result<std::string> html_page(const std::string& view, const Json& data) {
  CUTAWAY_SPAN(span, "api::html_page", "view", view);
  constexpr std::string_view kViews[] = {"lens", "attention", "report"};
  if (std::find(std::begin(kViews), std::end(kViews), view) == std::end(kViews) ||
      !data.is_object() || data.value("view", "") != view) {
    return Error{ErrorCode::kInvalidArgument,
                 "'" + view +
                     "' is no page, or the data is another view's; there are lens, "
                     "attention and report",
                 "view"};
  }
  std::string out =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:\">\n"
      "<link rel=\"icon\" href=\"data:,\">\n<title>Cutaway</title>\n<style>\n";
  out.append(api::kPageStyle);
  out +=
      "</style>\n</head>\n<body>\n<noscript>This page draws with JavaScript, from the data that it "
      "holds. 이 페이지는 자바스크립트로 그려집니다.</noscript>\n"
      "<script type=\"application/json\" id=\"data\">";
  out += embedded(data);
  out += "</script>\n<script>\n";
  out.append(api::kPageScript);
  out += "</script>\n</body>\n</html>\n";
  if (out.size() > kMostBytes) {
    return Error{ErrorCode::kTooLarge,
                 fmt::format("the page has {} bytes, more than a browser opens ({})", out.size(),
                             kMostBytes),
                 "view"};
  }
  CUTAWAY_OUT(span, "bytes", out.size());
  return out;
}

}  // namespace cutaway
