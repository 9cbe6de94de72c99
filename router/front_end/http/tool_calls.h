// Finds tool calls in an answer's text as it comes: sections <tool_call>{"name": …, "arguments":
// {…}}</tool_call>, the format of the templates that declare tools this way (Hermes, Qwen). Text
// that may be the beginning of a section is held back. What looks like a call and is none stays
// text. Where calls are not parallel only the first of an answer is given.
// Thread safety: none; one for each choice.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "router/front_end/http/api_request.h"
#include "router/front_end/http/json_body.h"

namespace tandem::router {

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON text
};

struct ToolPieces {
  std::string content;
  std::vector<ToolCall> calls;
};

class ToolCallFinder {
 public:
  explicit ToolCallFinder(const ApiRequest& api)
      : mode_(api.tool_mode), tool_name_(api.tool_name), parallel_(api.parallel_calls) {}

  // What `text`, the next of the answer, makes certain.
  ToolPieces Append(absl::string_view text);
  // The answer is complete: the rest.
  ToolPieces Flush();
  // Whether any call was found.
  bool found() const { return found_; }

 private:
  void TakeSections(ToolPieces& pieces);
  bool AddCall(const Json& object, ToolPieces& pieces);
  bool AddCallText(absl::string_view json, ToolPieces& pieces);
  void TakeList(absl::string_view json, ToolPieces& pieces);

  const ToolMode mode_;
  const std::string tool_name_;
  const bool parallel_;
  std::string held_;
  bool found_ = false;
};

}  // namespace tandem::router
