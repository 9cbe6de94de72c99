// Finds tool calls in an answer's text while it arrives: sections <tool_call>{"name": …,
// "arguments": {…}}</tool_call>, the format of templates in the style of Hermes and Qwen. Text that
// may begin a section is held back. A section that is not a call stays text. A closing mark within
// a string of the call's JSON is part of the string, unless no call comes of this. If calls are not
// parallel, only the first of an answer is returned. Arguments keep the model's spelling, without
// the blanks between their parts.
// Thread safety: none. Owner: one for each choice of an answer.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "router/front_end/http/api_request.h"
#include "router/front_end/json_body.h"

namespace tandem::router {

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON text
  bool whole = true;      // false: the answer ended within the arguments
};

struct ToolPieces {
  std::string content;
  std::vector<ToolCall> calls;
};

class ToolCallFinder {
 public:
  explicit ToolCallFinder(const ApiRequest& api)
      : mode_(api.tool_mode), tool_name_(api.tool_name), parallel_(api.parallel_calls) {}

  // Takes the next text of the answer; returns the text and calls that are certain now.
  ToolPieces Append(absl::string_view text);
  // Like Append, but gives what is certain in the order in which the model wrote it: each time one
  // text or one call, however the text comes.
  void AppendInOrder(absl::string_view text, absl::FunctionRef<void(const ToolPieces&)> give);
  // The rest. REQUIRES: the answer is complete.
  ToolPieces Flush();
  // Like Append and Flush, but where the model may call: without white space that stands alone
  // before a call, or behind the last one.
  ToolPieces AppendWithoutBlanks(absl::string_view text);
  ToolPieces FlushWithoutBlanks();
  // Whether any call was found.
  bool found() const { return found_; }
  // Whether the answer ended within a call.
  bool cut() const { return cut_; }

 private:
  // Adds `pieces`, a text or a call, to `all`.
  void AddWithoutBlanks(const ToolPieces& pieces, ToolPieces& all);
  // What was read of an open section, whose first byte is byte 0.
  struct SectionScan {
    size_t at = 0;          // what lies before was read: no closing mark that counts begins there
    size_t first_mark = 0;  // a closing mark that is part of a string; 0: none
    bool begun = false;     // a byte other than blanks was read behind the opening mark
    bool is_json = false;   // it looks like an object so far
    bool in_text = false;   // within a string
    bool escaped = false;   // behind a backslash

    void Take(char c);
  };

  void TakeSections(ToolPieces& pieces);
  // Where the closing mark of `section` begins; npos if it has none that counts yet.
  size_t FindEnd(absl::string_view section);
  void FlushSections(ToolPieces& pieces);
  void AddLast(ToolCall call, ToolPieces& pieces);
  // `json` is the text of `object`.
  bool AddCall(const Json& object, absl::string_view json, ToolPieces& pieces);
  bool AddCallText(absl::string_view json, ToolPieces& pieces);
  void TakeList(absl::string_view json, ToolPieces& pieces);
  // A list that the answer's length or a stop string cut off: its whole calls, and what there is of
  // the last one's arguments.
  void TakeCutList(absl::string_view json, ToolPieces& pieces);

  const ToolMode mode_;
  const std::string tool_name_;
  const bool parallel_;
  std::string held_;
  SectionScan scan_;  // of held_, if that is an open section
  // Sections that may be read again because a mark in a string was the end after all. Then each
  // mark is an end, so an answer is read a few times at most.
  int rereads_left_ = 16;
  bool found_ = false, cut_ = false;
  std::string blanks_;       // may stand before a call. Bound: what max_tokens can hold
  bool text_begun_ = false;  // text other than blanks was given since the last call
};

}  // namespace tandem::router
